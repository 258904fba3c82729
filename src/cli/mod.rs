//! The command line: arguments in, text out, an exit code at the end.
//!
//! It decides nothing of its own: `plan` and `explain` call the same planner as the operator.
//!
//! Exit codes: 0 nothing to do or done, 1 error, 2 `plan` found changes.

mod capabilities;
mod crds;
mod explain;
mod input;
mod operator;
mod plan;
mod profiles;
mod render;
mod restore;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand, ValueEnum};
use k8s_openapi::jiff::civil::Date;

pub use input::InputError;
pub use operator::OperatorArgs;

/// Tunes Windows virtual machines on KubeVirt and Harvester, says why, and puts every field back exactly.
#[derive(Debug, Parser)]
#[command(name = "wintune", version, about, max_term_width = 100)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show what would be changed in VirtualMachine manifests, without a cluster.
    ///
    /// Exit code: 0 nothing to change, 2 changes, 1 error.
    Plan(PlanArgs),
    /// Show every setting of VirtualMachine manifests with its reason, source and effect, without a cluster.
    Explain(ExplainArgs),
    /// Give a VM in the cluster back the values that wintune replaced. The operator need not run.
    Restore(restore::RestoreArgs),
    /// Print the built-in profiles, with the reason and source of each value.
    Profiles {
        /// Only this one.
        name: Option<String>,
    },
    /// Print what the cluster of the kubeconfig can do, for `plan --capabilities` where there is no cluster.
    Capabilities,
    /// Print the JSON Schema of `wintune plan -o json`.
    Schema,
    /// Print our CustomResourceDefinitions, or write each into a file of a folder.
    Crds {
        /// Write them into this folder.
        #[arg(long, value_name = "FOLDER")]
        out: Option<PathBuf>,
    },
    /// Run the operator. It runs until SIGTERM.
    Operator(OperatorArgs),
}

/// Which manifests, and what is asked of them.
#[derive(Debug, Args)]
struct ManifestArgs {
    /// File with VirtualMachines, `-` for standard input; may be given several times.
    #[arg(short = 'f', long = "filename", value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Profile to plan with.
    #[arg(long, conflicts_with = "policy")]
    profile: Option<String>,
    /// File with one WindowsTuning or ClusterWindowsTuning to plan with.
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// What the cluster can do, where none is asked.
#[derive(Debug, Args)]
struct ClusterArgs {
    /// Plan for this version of KubeVirt (1.2 to 1.9), by the bundled table.
    #[arg(long, value_name = "VERSION", group = "capable")]
    kubevirt: Option<String>,
    /// Plan for this version of Harvester (1.4 to 1.9), by the bundled table.
    #[arg(long, value_name = "VERSION", group = "capable")]
    harvester: Option<String>,
    /// File of kind Capabilities that says what the cluster can do, and which nodes it has.
    #[arg(long, value_name = "FILE", group = "capable")]
    capabilities: Option<PathBuf>,
    /// Plan as of this day, for rules that are to be reviewed by a date. Default: today.
    #[arg(long, value_name = "YYYY-MM-DD")]
    date: Option<Date>,
}

/// Arguments of `plan`.
#[derive(Debug, Args)]
struct PlanArgs {
    #[command(flatten)]
    manifests: ManifestArgs,
    /// How to print.
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum Output {
    /// Aligned columns for people.
    #[default]
    Table,
    /// The plans as YAML.
    Yaml,
    /// The plans as JSON; the shape is stable within an API version.
    Json,
    /// The JSON Patch of one VM, for `kubectl patch --type=json`.
    Patch,
    /// What would change in the manifests, line by line.
    Diff,
}

/// Arguments of `explain`.
#[derive(Debug, Args)]
struct ExplainArgs {
    #[command(flatten)]
    manifests: ManifestArgs,
    /// Only settings whose field contains this text, such as `synic`; or `VM.FIELD` for those of one VM.
    #[arg(value_name = "[VM.]FIELD")]
    field: Option<String>,
}

/// Everything that can end a command with exit code 1.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// Manifests or policies could not be read; each line names file, document and field.
    #[error("{}", .0.iter().map(|fault| harmless(&fault.to_string(), "\t")).collect::<Vec<_>>().join("\n"))]
    Input(Vec<InputError>),
    /// A version or file of capabilities that cannot be used.
    #[error("{what}: {cause}")]
    Capabilities {
        /// Which option or file.
        what: String,
        /// What is wrong with it.
        cause: String,
    },
    /// No VM or field of that name.
    #[error("{0}")]
    NotFound(String),
    /// No plan could be made.
    #[error(transparent)]
    Plan(#[from] crate::plan::PlanError),
    /// The embedded data is invalid.
    #[error(transparent)]
    Data(#[from] crate::plan::profile::DataError),
    /// `-o patch` speaks of one VM.
    #[error("-o patch prints the patch of one VM, but {0} were given; use -o json for several")]
    OnePatch(usize),
    /// A profile that this build does not have.
    #[error("profile {0:?} is not known; known are: {1}")]
    UnknownProfile(String, String),
    /// Output could not be written.
    #[error("cannot write {what}: {cause}")]
    Write {
        /// Which file, or standard output.
        what: String,
        /// What the system says.
        cause: std::io::Error,
    },
    /// Output could not be made.
    #[error("cannot print: {0}")]
    Print(String),
    /// A restore that must not or could not be done.
    #[error(transparent)]
    Restore(#[from] restore::RestoreError),
    /// The operator could not start or ended with an error.
    #[error(transparent)]
    Operator(#[from] crate::controller::OperatorError),
    /// A log filter that cannot be read.
    #[error("log filter {0:?}: {1}")]
    LogFilter(String, String),
    /// The asynchronous runtime could not start.
    #[error("cannot start the runtime: {0}")]
    Runtime(std::io::Error),
}

impl Cli {
    /// Carries the command out.
    ///
    /// # Errors
    /// One of [`CliError`]; the caller prints it on standard error and exits with 1.
    pub fn run(self) -> Result<ExitCode, CliError> {
        match self.command {
            Command::Plan(args) => plan::run(&args),
            Command::Explain(args) => explain::run(&args),
            Command::Restore(args) => restore::run(args),
            Command::Profiles { name } => profiles::run(name.as_deref()),
            Command::Capabilities => capabilities::run(),
            Command::Schema => print(&render::schema()?).map(|()| ExitCode::SUCCESS),
            Command::Crds { out } => crds::run(out.as_deref()),
            Command::Operator(args) => operator::run(args),
        }
    }
}

/// A runtime with as many threads as the machine has cores.
fn runtime() -> Result<tokio::runtime::Runtime, CliError> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(CliError::Runtime)
}

/// Writes to standard output. A reader that went away (`| head`) is not an error.
fn print(text: &str) -> Result<(), CliError> {
    use std::io::Write;
    match std::io::stdout().lock().write_all(harmless(text, "\n\t").as_bytes()) {
        Err(cause) if cause.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(CliError::Write { what: "standard output".to_owned(), cause })
        }
        _ => Ok(()),
    }
}

/// Text that holds words of others, as it may go to a terminal: control characters but these are spelled out, in the
/// way that JSON and YAML read back.
fn harmless(text: &str, but: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() && !but.contains(c) {
            clean.push_str(&format!("\\u{:04x}", u32::from(c)));
        } else {
            clean.push(c);
        }
    }
    clean
}
