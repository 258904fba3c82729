//! The command line against files that people and machines really hand to it: every fault one line with a name, never
//! a panic, never a control character on the terminal, and exit codes that scripts can rely on.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)] // a test fails by panicking

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

/// A VM that the plan has everything to write for.
const VM: &str = r"apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata:
  name: ledger
  namespace: erp
  labels: {harvesterhci.io/os: windows, tier: db}
spec:
  runStrategy: Halted
  template:
    spec:
      domain:
        memory: {guest: 4Gi}
        devices: {}
";

const POLICY: &str = r"apiVersion: wintune.dev/v1alpha1
kind: WindowsTuning
metadata: {name: databases, namespace: erp}
spec:
  selector: {matchLabels: {tier: db}}
  overrides: {hyperv: {reset: Leave}}
";

/// What a run of the binary came to.
struct Run {
    code: i32,
    out: String,
    err: String,
}

impl Run {
    #[track_caller]
    fn fails(&self, lines: usize, words: &[&str]) -> &Self {
        assert_eq!(self.code, 1, "{}{}", self.out, self.err);
        assert!(self.err.starts_with("error: "), "{}", self.err);
        assert_eq!(self.err.lines().count(), lines, "{}", self.err);
        for word in words {
            assert!(self.err.contains(word), "{word:?} is not in: {}", self.err);
        }
        self
    }

    #[track_caller]
    fn ends(&self, code: i32, words: &[&str]) -> &Self {
        assert_eq!((self.code, self.err.as_str()), (code, ""), "{}", self.out);
        for word in words {
            assert!(self.out.contains(word), "{word:?} is not in: {}", self.out);
        }
        self
    }

    fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap()
    }
}

/// Files and the binary.
struct Desk(TempDir);

impl Desk {
    fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    fn file(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        let path = self.0.path().join(name);
        std::fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_owned()
    }

    fn run(&self, args: &[&str]) -> Run {
        self.feed(args, b"")
    }

    fn feed(&self, args: &[&str], stdin: &[u8]) -> Run {
        let mut command = Command::new(env!("CARGO_BIN_EXE_wintune"));
        command.args(args).current_dir(self.0.path());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // It may end before it has read everything.
        let _ = child.stdin.take().unwrap().write_all(stdin);
        let output = child.wait_with_output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        let run = Run { code: output.status.code().unwrap(), out: text(output.stdout), err: text(output.stderr) };
        assert!(!run.err.contains("panicked"), "{}", run.err);
        let control = |c: char| c.is_control() && c != '\n' && c != '\t';
        assert!(!run.out.contains(control) && !run.err.contains(control), "{:?}{:?}", run.out, run.err);
        run
    }

    /// Plans one file with this content.
    fn plan(&self, content: impl AsRef<[u8]>) -> Run {
        self.file("vm.yaml", content);
        self.run(&["plan", "-f", "vm.yaml"])
    }
}

/// The VM with one piece replaced.
#[track_caller]
fn vm_with(from: &str, to: &str) -> String {
    assert!(VM.contains(from));
    VM.replacen(from, to, 1)
}

/// The VM with more lines in its domain.
fn domain_with(lines: &str) -> String {
    format!("{VM}        {}\n", lines.replace('\n', "\n        "))
}

#[test]
fn files_that_hold_no_virtual_machine_are_named() {
    let desk = Desk::new();
    let wrong = "expected a VirtualMachine of kubevirt.io, found kind";
    for (content, words) in [
        ("a: [1\n", "vm.yaml, document 1: not valid YAML or JSON: unclosed bracket '[' at line 1, column 4"),
        ("a: b: c\n", "mapping values are not allowed"),
        ("{\"a\": 1", "not valid YAML or JSON"),
        ("a: 1\na: 2\n", "duplicate mapping key `a`"),
        ("", "vm.yaml: empty, expected a VirtualMachine"),
        ("# nothing\n---\n# to see\n", "vm.yaml: empty"),
        ("---\n---\n", "vm.yaml: empty"),
        ("null\n", "vm.yaml: empty"),
        ("just words\n", wrong),
        ("- a\n- b\n", wrong),
        ("42\n", wrong),
        ("{}\n", wrong),
        ("kind: [VirtualMachine]\napiVersion: {a: b}\n", wrong),
        ("apiVersion: v1\nkind: List\n", "found kind \"List\" of apiVersion \"v1\""),
    ] {
        desk.plan(content).fails(1, &[words]);
    }
    desk.plan(vm_with("kind: VirtualMachine", "kind: VirtualMachineInstance"))
        .fails(1, &[wrong, "VirtualMachineInstance"]);
    desk.plan(vm_with("kubevirt.io/v1", "example.org/v1")).fails(1, &[wrong, "example.org/v1"]);
    desk.plan(vm_with("kubevirt.io/v1", "kubevirt.io.example.org/v1")).fails(1, &[wrong]);
    // An older version of the right group is planned.
    desk.plan(vm_with("kubevirt.io/v1", "kubevirt.io/v1alpha3")).ends(2, &["erp/ledger"]);
}

#[test]
fn files_that_cannot_be_read_are_named() {
    let desk = Desk::new();
    desk.plan([0x00, 0x9f, 0xff, 0xfe]).fails(1, &["vm.yaml: not UTF-8 text"]);
    desk.plan(b"metadata: {name: caf\xe9}").fails(1, &["vm.yaml: not UTF-8 text"]);
    desk.plan("a: \0\n").fails(1, &["vm.yaml, document 1: not valid YAML"]);
    desk.run(&["plan", "-f", "nowhere.yaml"]).fails(1, &["nowhere.yaml: No such file"]);
    desk.run(&["plan", "-f", "."]).fails(1, &[".: Is a directory"]);
    desk.run(&["plan", "-f", "two\nlines\u{1b}[2J.yaml"]).fails(1, &["two\\u000alines\\u001b[2J.yaml: No such file"]);
    let endless = PathBuf::from("/dev/zero");
    if endless.exists() {
        desk.run(&["plan", "-f", "/dev/zero"]).fails(1, &["/dev/zero: longer than 33554432 bytes"]);
    }
    // One fault hides no other, and no other file.
    let good = desk.file("good.yaml", VM);
    let run = desk.run(&["plan", "-f", "nowhere.yaml", "-f", &good, "-f", "."]);
    run.fails(2, &["nowhere.yaml", ".: Is a directory"]);
    assert!(run.out.contains("erp/ledger: Windows"), "{}", run.out);
}

#[test]
fn hostile_yaml_ends_soon_and_says_why() {
    let desk = Desk::new();
    let nested = |open: &str, close: &str, depth: usize| format!("a: {}1{}", open.repeat(depth), close.repeat(depth));
    for deep in [nested("[", "]", 100_000), nested("{a: ", "}", 10_000)] {
        desk.plan(deep).fails(1, &["not valid YAML or JSON"]);
    }
    let stairs: String = (0..3000).map(|depth| format!("{}a:\n", " ".repeat(depth))).collect();
    desk.plan(stairs).fails(1, &["too large or too complex"]);
    let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..12 {
        let alias = format!("*a{}", level - 1);
        bomb += &format!("a{level}: &a{level} [{}]\n", [alias.as_str(); 9].join(", "));
    }
    let begin = std::time::Instant::now();
    desk.plan(bomb).fails(1, &["too large or too complex"]);
    assert!(begin.elapsed().as_secs() < 20, "{:?}", begin.elapsed());
    desk.plan("a: &a [*a]\n").fails(1, &["vm.yaml"]);
    desk.plan("a: !!binary x\n").fails(1, &["vm.yaml"]);
    // Harmless, though they look unusual: aliases, merge keys, tags, long comments.
    let spec = "x: &m {guest: 4Gi}\ny: {<<: *m}\n";
    desk.plan(format!("{spec}{VM}")).ends(2, &["erp/ledger"]);
    let comments = "# why\n".repeat(500);
    desk.plan(vm_with("spec:\n  run", &format!("spec:\n{comments}  run"))).ends(2, &["erp/ledger"]);
}

#[test]
fn shapes_that_no_api_server_keeps_are_faults() {
    let desk = Desk::new();
    for (from, to, words) in [
        ("  name: ledger\n", "", "metadata.name is missing"),
        ("name: ledger", "name: \"\"", "metadata.name is missing"),
        ("name: ledger", "name: [a]", "metadata.name is missing"),
        ("spec:\n  runStrategy", "other:\n  runStrategy", "spec is missing"),
        ("  template:", "  other:", "spec.template is missing"),
        ("    spec:\n", "    other:\n", "spec.template.spec is missing"),
        ("      domain:", "      other:", "spec.template.spec.domain is missing"),
    ] {
        desk.plan(vm_with(from, to)).fails(1, &["vm.yaml, document 1: ", words]);
    }
    for spec in ["[]", "x", "null", "1"] {
        let manifest = format!("{}spec: {spec}\n", VM.split("spec:").next().unwrap());
        desk.plan(manifest).fails(1, &["document 1: spec is missing or is not an object"]);
    }
    for (lines, field) in [
        ("features: []", "features"),
        ("features: on", "features"),
        ("features: {hyperv: [relaxed]}", "features.hyperv"),
        ("features: {hyperv: {vapic: true}}", "features.hyperv.vapic"),
        ("features: {hyperv: {vapic: {enabled: \"no\"}}}", "features.hyperv.vapic.enabled"),
        ("features: {hyperv: {synictimer: {direct: false}}}", "features.hyperv.synictimer.direct"),
        ("clock: utc", "clock"),
        ("clock: {utc: true}", "clock.utc"),
        ("clock: {timer: []}", "clock.timer"),
        ("clock: {timer: {hpet: false}}", "clock.timer.hpet"),
        ("clock: {timer: {hpet: {present: 0}}}", "clock.timer.hpet.present"),
        ("clock: {timer: {pit: {tickPolicy: [delay]}}}", "clock.timer.pit.tickPolicy"),
    ] {
        desk.plan(domain_with(lines)).fails(1, &[&format!("spec.template.spec.domain.{field} is missing or is not")]);
    }
}

#[test]
fn what_the_cluster_can_do_is_told_by_version_or_by_a_file() {
    let desk = Desk::new();
    let vm = desk.file("vm.yaml", VM);
    desk.run(&["plan", "-f", &vm, "--kubevirt", "1.8"])
        .ends(2, &["assumed: the cluster's capabilities are taken from the bundled table for KubeVirt 1.8"]);
    desk.run(&["plan", "-f", &vm, "--harvester", "1.8.2"])
        .ends(2, &["bundled table for Harvester 1.8 with KubeVirt 1.7"]);
    desk.run(&["plan", "-f", &vm, "--kubevirt", "0.9"])
        .fails(1, &["--kubevirt: KubeVirt \"0.9\" is not in the bundled table; known are 1.2"]);
    desk.run(&["plan", "-f", &vm, "--kubevirt", "1.8", "--harvester", "1.8"]).fails(5, &["cannot be used with"]);
    let file = |nodes: &str| {
        format!(
            "apiVersion: wintune.dev/v1alpha1\nkind: Capabilities\nkubevirt: 1.8.4\ngates: [CPUManager]\nnodes: {nodes}\n"
        )
    };
    let node = "{name: n, labels: {kubevirt.io/schedulable: 'true', hyperv.node.kubevirt.io/base: 'true'}}";
    let caps = desk.file("caps.yaml", file(&["[", node, "]"].concat()));
    desk.run(&["plan", "-f", &vm, "--capabilities", &caps]).ends(
        2,
        &[
            "nodes that can take it: 1 of 1 nodes -> 1 of 1",
            "refused: node-lacks-feature",
            "capabilities are those of",
            "caps.yaml",
        ],
    );
    for (text, words) in [
        (file("7"), "caps.yaml, document 1"),
        (file("[]").replace("Capabilities", "Policy"), "expected kind Capabilities"),
        (file("[]").replace("gates", "gate"), "gate"),
        (file("[]").replace("1.8.4", "main"), "\"main\" is not a version"),
    ] {
        let caps = desk.file("caps.yaml", &text);
        desk.run(&["plan", "-f", &vm, "--capabilities", &caps]).fails(1, &[words]);
    }
    desk.run(&["plan", "-f", &vm, "--capabilities", "nowhere"]).fails(1, &["nowhere"]);
}

#[test]
fn explain_takes_a_vm_and_a_field() {
    let desk = Desk::new();
    let managed = VM.replace(
        "metadata:\n",
        "metadata:\n  managedFields:\n  - {manager: \"kub\\u001Bectl\", operation: Update, fieldsV1: {'f:spec': {'f:template': {'f:spec': {'f:domain': {'f:devices': {}}}}}}}\n",
    );
    let name = "vm";
    let file = desk.file("vm.yaml", &managed);
    let vm: Value = serde_saphyr::from_str(VM).unwrap();
    let name = vm["metadata"]["name"].as_str().unwrap_or(name).to_owned();
    let run = desk.run(&["explain", "-f", &file, &format!("{name}.vapic")]);
    run.ends(0, &["features.hyperv.vapic", "owner    nobody: no manager has the field"]);
    assert_eq!(run.out.matches("    reason   ").count(), 1);
    desk.run(&["explain", "-f", &file, &name]).ends(0, &["features.hyperv.ipi", "clock.utc"]);
    desk.run(&["explain", "-f", &file, &format!("{name}.nothing")]).fails(1, &["no setting of the plan of", "nothing"]);
}

#[test]
fn the_published_schema_is_the_one_that_is_printed() {
    let desk = Desk::new();
    let published = include_str!("../schemas/plan.v1alpha1.json");
    assert_eq!(
        desk.run(&["schema"]).ends(0, &["PlanList", "https://wintune.dev/schemas/v1alpha1/plan.json"]).out,
        published
    );
}

#[test]
fn odd_values_beside_the_settings_are_nothing_to_us() {
    let desk = Desk::new();
    for lines in [
        "cpu: {cores: 99999999999999999999999999, sockets: -1, threads: 0x10, model: null}",
        "cpu: {cores: 1e300}",
        "cpu: 4",
        "cpu: {1: 2, true: 3, ? [a, b] : c}",
        "devices: {disks: {}}",
        "resources: [1]",
        "\"\": \"\"",
        "features: null\nclock: null",
    ] {
        let run = desk.plan(domain_with(lines).replace("        devices: {}\n", ""));
        assert!(run.code == 2 || run.err.starts_with("error: "), "{lines}: {}{}", run.out, run.err);
    }
    for lines in ["features: null\nclock: null", "launchSecurity: 7", "chassis: 4"] {
        desk.plan(domain_with(lines)).ends(2, &["15 to write"]);
    }
    // What is read is named where it cannot be.
    for (lines, field) in [("cpu: {cores: 99999999999999999999999999}", "cpu.cores"), ("cpu: 4", "cpu")] {
        desk.plan(domain_with(lines)).fails(1, &[&format!("spec.template.spec.domain.{field} is missing or is not")]);
    }
    for bad in [".inf", ".nan", "1e999"] {
        desk.plan(domain_with(&format!("cpu: {{cores: {bad}}}"))).fails(1, &["is not a finite number"]);
    }
}

/// kubectl reads YAML 1.1, where these words are booleans.
#[test]
fn bare_words_for_booleans_mean_what_kubectl_takes_them_for() {
    let desk = Desk::new();
    for word in ["no", "off", "No", "OFF", "n", "false"] {
        let run = desk.plan(domain_with(&format!("features: {{hyperv: {{vapic: {{enabled: {word}}}}}}}")));
        run.ends(2, &["14 to write, 0 already so, 1 kept as the owner chose"]);
    }
    for word in ["yes", "on", "true", "~"] {
        let run = desk.plan(domain_with(&format!("clock: {{timer: {{hyperv: {{present: {word}}}}}}}")));
        run.ends(2, &["14 to write, 1 already so"]);
    }
}

#[test]
fn one_bad_document_hides_no_other() {
    let desk = Desk::new();
    let second = VM.replace("ledger", "second");
    let other = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\n";
    let run = desk.plan(format!("# all of them\n---\n{VM}---\n{other}--- # the last\n{second}---\n"));
    run.fails(1, &["vm.yaml, document 2: expected a VirtualMachine of kubevirt.io, found kind \"ConfigMap\""]);
    assert!(run.out.contains("erp/ledger: Windows") && run.out.contains("erp/second: Windows"), "{}", run.out);
    // A fault of the syntax neither, and its line is the file's.
    let run = desk.plan(format!("{VM}---\na: b: c\n---\n---\n{second}---\na: [\n"));
    run.fails(2, &["document 2: ", "at line 15, column 5", "document 5: "]);
    assert!(run.out.contains("erp/ledger: Windows") && run.out.contains("erp/second: Windows"), "{}", run.out);
    // JSON output stays JSON.
    let run = desk.run(&["plan", "-f", "vm.yaml", "-o", "json"]);
    assert_eq!((run.code, run.json()["items"].as_array().unwrap().len()), (1, 2));
    // Windows' line ends, and `...`.
    desk.plan(format!("---\n{VM}...\n---\n{second}").replace('\n', "\r\n")).ends(2, &["erp/ledger", "erp/second"]);
}

#[test]
fn lists_are_taken_apart() {
    let desk = Desk::new();
    let vm: Value = serde_saphyr::from_str(VM).unwrap();
    for kind in ["List", "VirtualMachineList"] {
        let list = json!({"apiVersion": "v1", "kind": kind, "items": [vm, {"kind": "Pod"}, vm]});
        let run = desk.plan(list.to_string());
        run.fails(1, &["vm.yaml, document 1 item 2: expected a VirtualMachine", "\"Pod\""]);
        assert_eq!(run.out.matches("erp/ledger: Windows").count(), 2);
    }
    // A large cluster's worth of VMs in one List is not too many.
    let mut fat = vm.clone();
    let annotations: serde_json::Map<_, _> = (0..1_500).map(|i| (format!("a{i}"), json!(""))).collect();
    fat["metadata"]["annotations"] = annotations.into();
    let list = json!({"apiVersion": "v1", "kind": "List", "items": vec![fat; 100]});
    desk.plan(list.to_string()).ends(2, &["15 to write"]);
}

#[test]
fn standard_input_is_a_file() {
    let desk = Desk::new();
    desk.feed(&["plan", "-f", "-"], VM.as_bytes()).ends(2, &["erp/ledger"]);
    desk.feed(&["plan", "-f", "-"], b"").fails(1, &["standard input: empty"]);
    desk.feed(&["plan", "-f", "-"], b"a: [").fails(1, &["standard input, document 1: not valid YAML"]);
    desk.feed(&["plan", "-f", "-"], &[0xff]).fails(1, &["standard input: not UTF-8"]);
}

#[test]
fn exit_codes_tell_changes_from_errors() {
    let desk = Desk::new();
    let vm = desk.file("vm.yaml", VM);
    desk.run(&["plan", "-f", &vm]).ends(2, &["15 to write"]);
    let linux = desk.file("linux.yaml", vm_with("windows", "linux"));
    desk.run(&["plan", "-f", &linux]).ends(0, &["not Windows, nothing to do", "label it harvesterhci.io/os=windows"]);
    // One VM with changes is enough.
    desk.run(&["plan", "-f", &linux, "-f", &vm]).ends(2, &["not Windows", "15 to write"]);
    // What explain shows is no error.
    desk.run(&["explain", "-f", &vm]).ends(0, &["to be written"]);
    for args in
        [&["plan"][..], &["plan", "-f"], &["plan", "--nonsense"], &["nonsense"], &[], &["plan", "-f", &vm, "-o", "xml"]]
    {
        let run = desk.run(args);
        assert_eq!((run.code, run.out.as_str()), (1, ""), "{args:?}: {}", run.err);
    }
    for args in [&["--version"][..], &["--help"], &["plan", "--help"]] {
        assert_eq!(desk.run(args).code, 0);
    }
    if PathBuf::from("/dev/full").exists() {
        let full = std::fs::File::create("/dev/full").unwrap();
        let child =
            Command::new(env!("CARGO_BIN_EXE_wintune")).args(["plan", "-f", &vm]).stdout(full).output().unwrap();
        assert_eq!(child.status.code(), Some(1));
        assert!(String::from_utf8(child.stderr).unwrap().starts_with("error: cannot write standard output"));
    }
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let desk = Desk::new();
    // More than a pipe holds.
    let many: String = (0..200).map(|i| format!("---\n{}", VM.replace("ledger", &format!("vm-{i}")))).collect();
    let file = desk.file("many.yaml", many);
    let mut command = Command::new(env!("CARGO_BIN_EXE_wintune"));
    let mut child = command.args(["plan", "-f", &file]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut first = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut first).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(first.starts_with("erp/vm-0: Windows"), "{first}");
    assert_eq!((output.status.code(), String::from_utf8(output.stderr).unwrap().as_str()), (Some(2), ""));
}

#[test]
fn outputs_agree_with_each_other() {
    let desk = Desk::new();
    let file: Value = serde_saphyr::from_str(VM).unwrap();
    let vm = desk.file("vm.json", file.to_string());
    let json = desk.run(&["plan", "-f", &vm, "-o", "json"]);
    let json = json.ends(2, &[]).json();
    assert_eq!((json["apiVersion"].as_str(), json["kind"].as_str()), (Some("wintune.dev/v1alpha1"), Some("PlanList")));
    let yaml = desk.run(&["plan", "-f", &vm, "-o", "yaml"]);
    assert_eq!(serde_saphyr::from_str::<Value>(&yaml.ends(2, &[]).out).unwrap(), json);

    // The patch is one that a JSON Patch library takes, and after it nothing is left to do.
    let patch = desk.run(&["plan", "-f", &vm, "-o", "patch"]);
    // It says that this file may not be what lies in the cluster.
    assert!(patch.err.starts_with("note: this manifest was not read from a cluster"), "{}", patch.err);
    assert_eq!((patch.code, patch.err.lines().count()), (2, 1));
    let patch: json_patch::Patch = serde_json::from_str(&patch.out).unwrap();
    let mut after = file.clone();
    json_patch::patch(&mut after, &patch).unwrap();
    let done = desk.file("done.json", after.to_string());
    desk.run(&["plan", "-f", &done]).ends(0, &["0 to write, 15 already so"]);
    assert_eq!(desk.run(&["plan", "-f", &done, "-o", "patch"]).ends(0, &[]).out, "[]\n");
    assert_eq!(desk.run(&["plan", "-f", &done, "-o", "diff"]).ends(0, &[]).out, "");
    let diff = desk.run(&["plan", "-f", &vm, "-o", "diff"]);
    diff.ends(2, &["--- erp/ledger now\n+++ erp/ledger planned\n", "\n+            vapic:\n", "\n+        clock:\n"]);
    assert!(!diff.out.lines().skip(2).any(|l| l.starts_with('-')), "{}", diff.out);

    // A patch speaks of one VM.
    let both = desk.run(&["plan", "-f", &vm, "-f", &done, "-o", "patch"]);
    both.fails(1, &["-o patch prints the patch of one VM, but 2 were given"]);
    let faulty = desk.run(&["plan", "-f", &vm, "-f", "nowhere", "-o", "patch"]);
    assert_eq!(faulty.fails(1, &["nowhere"]).out, "");
}

#[test]
fn explain_gives_each_setting_its_reason_source_and_effect() {
    let desk = Desk::new();
    let owners = "features: {hyperv: {vapic: {enabled: false}, tlbflush: {}}}\nclock: {timezone: Europe/Berlin}";
    let vm = desk.file("vm.yaml", domain_with(owners));
    let run = desk.run(&["explain", "-f", &vm]);
    run.ends(0, &["erp/ledger: Windows", "sign: label harvesterhci.io/os=windows says Windows (Strong)"]);
    let blocks: Vec<&str> = run.out.split("\n\n").filter(|b| b.contains("    outcome  ")).collect();
    assert_eq!(blocks.len(), 16, "{}", run.out);
    for block in blocks {
        for line in ["now", "wanted", "outcome", "reason", "source", "effect"] {
            let found =
                block.lines().find(|l| l.trim_start().starts_with(line)).unwrap_or_else(|| panic!("{line}: {block}"));
            assert!(found.trim_start().len() > line.len() + 2, "{found}");
        }
    }
    run.ends(
        0,
        &[
            "kept: its owner set enabled: false",
            "kept: its owner set the time zone",
            "QEMU docs/system/i386/hyperv.rst",
        ],
    );
    let one = desk.run(&["explain", "-f", &vm, "synictimer.direct"]);
    assert_eq!(one.ends(0, &["features.hyperv.synictimer.direct"]).out.matches("    reason   ").count(), 1);
    desk.run(&["explain", "-f", &vm, "nonsense"]).ends(0, &["no setting of this plan has \"nonsense\" in its name"]);
    desk.run(&["explain", "-f", "nowhere"]).fails(1, &["nowhere"]);
}

#[test]
fn profiles_and_definitions_are_printed() {
    let desk = Desk::new();
    let all = desk.run(&["profiles"]);
    all.ends(
        0,
        &[
            "migration-safe revision 2: ",
            "performance revision 1: ",
            "hyperv.spinlocks",
            "Enabled",
            "clock.hpet",
            "Leave",
        ],
    );
    let one = desk.run(&["profiles", "migration-safe"]);
    assert!(all.out.starts_with(&one.ends(0, &[]).out));
    desk.run(&["profiles", "fast"]).fails(1, &["profile \"fast\" is not known; known are: migration-safe"]);
    desk.run(&["plan", "-f", &desk.file("vm.yaml", VM), "--profile", "fast"]).fails(1, &["\"fast\" is not known"]);
    desk.run(&["plan", "-f", "vm.yaml", "--profile", "migration-safe"]).ends(2, &["15 to write"]);

    let printed = desk.run(&["crds"]);
    let crds: Vec<Value> = serde_saphyr::from_multiple(&printed.ends(0, &[]).out).unwrap();
    let names: Vec<&str> = crds.iter().map(|c| c["metadata"]["name"].as_str().unwrap()).collect();
    let expected =
        ["clusterwindowstunings.wintune.dev", "tunedvirtualmachines.wintune.dev", "windowstunings.wintune.dev"];
    assert_eq!(names, expected);
    assert_eq!(desk.run(&["crds", "--out", "made/here"]).ends(0, &[]).out, "");
    let mut files: Vec<String> = std::fs::read_dir(desk.0.path().join("made/here"))
        .unwrap()
        .map(|f| f.unwrap().file_name().into_string().unwrap())
        .collect();
    files.sort();
    assert_eq!(files, expected.map(|name| format!("{name}.yaml")));
    desk.run(&["crds", "--out", "vm.yaml/below"]).fails(1, &["vm.yaml/below"]);
}

#[test]
fn a_policy_decides_as_it_does_in_the_cluster() {
    let desk = Desk::new();
    let vm = desk.file("vm.yaml", VM);
    let with = |policy: String| {
        desk.file("policy.yaml", policy);
        desk.run(&["plan", "-f", &vm, "--policy", "policy.yaml"])
    };
    let from_to = |from: &str, to: &str| {
        assert!(POLICY.contains(from));
        POLICY.replacen(from, to, 1)
    };
    with(POLICY.to_owned()).ends(2, &["14 to write"]);
    with(from_to("tier: db", "tier: web")).ends(0, &["erp/ledger: the policy does not cover it"]);
    with(from_to("namespace: erp", "namespace: hr")).ends(0, &["the policy does not cover it"]);
    with(from_to(", namespace: erp", "")).ends(2, &["14 to write"]);
    with(from_to("{matchLabels: {tier: db}}", "{}")).ends(2, &["14 to write"]);
    desk.run(&["explain", "-f", &vm, "--policy", "policy.yaml"]).ends(0, &["features.hyperv.vapic"]);

    let cluster = |rest: &str| from_to("kind: Windows", "kind: ClusterWindows").replace(", namespace: erp", "") + rest;
    with(cluster("")).ends(2, &["14 to write"]);
    let by_name = |name: &str| {
        cluster(&format!("  namespaceSelector: {{matchLabels: {{kubernetes.io/metadata.name: {name}}}}}\n"))
    };
    with(by_name("erp")).ends(2, &["14 to write"]);
    with(by_name("hr")).ends(0, &["the policy does not cover it"]);

    for (from, to, words) in [
        ("  overrides", "  nonsense: 1\n  overrides", "spec.nonsense is not a field of this kind"),
        ("  overrides", "  selektor: {}\n  overrides", "spec.selektor is not a field"),
        ("matchLabels", "matchLables", "spec.selector.matchLables is not a field"),
        (
            "{matchLabels: {tier: db}}",
            "{matchExpressions: [{key: a, operator: Exists, more: 1}]}",
            "spec.selector.matchExpressions[0].more is not a field",
        ),
        ("spec:", "speck: {}\nspec:", "speck is not a field"),
        ("overrides: {hyperv: {", "overrides: {hyperv: {warp: Enabled, ", "warp"),
        ("reset: Leave", "reset: \"On\"", "On"),
        ("reset: Leave", "tlbfush: Enabled", "tlbfush"),
        (
            "  overrides",
            "  apply: {mode: Restart}\n  overrides",
            "Stage, Restart and Inject are not acted on by this release",
        ),
        ("  overrides", "  apply: {mode: Sometimes}\n  overrides", "Sometimes"),
        ("  overrides", "  apply: {windows: []}\n  overrides", "apply.windows is not acted on"),
        ("  overrides", "  measure: {}\n  overrides", "measure is not acted on"),
        ("  overrides", "  disks: {bus: VirtioWhenReady}\n  overrides", "disks.bus: only Keep"),
        ("  overrides", "  profile: fast\n  overrides", "spec.profile: \"fast\" is not one of migration-safe"),
        ("{matchLabels: {tier: db}}", "{matchExpressions: [{key: a, operator: Near}]}", "spec.selector"),
        ("  selector: {matchLabels: {tier: db}}\n", "", "missing field `selector`"),
        ("spec:", "spec: null\nstatus:", "spec: "),
        (
            "kind: WindowsTuning",
            "kind: NodeTuning",
            "expected a WindowsTuning or ClusterWindowsTuning, found kind \"NodeTuning\"",
        ),
        ("wintune.dev/v1alpha1", "wintune.dev/v1", "expected a policy of wintune.dev/v1alpha1"),
    ] {
        let run = with(from_to(from, to));
        run.fails(1, &["policy.yaml, document 1: ", words]);
        assert_eq!(run.out, "");
    }
    for harmless in
        ["  overrides: {}\n", "  overrides: {hyperv: {}}\n", "  disks: {}\n", "  overrides: null\n", "  apply: {}\n"]
    {
        let policy = POLICY.replace("  overrides: {hyperv: {reset: Leave}}\n", harmless);
        with(policy).ends(2, &["15 to write"]);
    }
    with(format!("{POLICY}---\n{POLICY}")).fails(1, &["expected one policy, found several documents"]);
    with(String::new()).fails(1, &["policy.yaml: empty, expected a WindowsTuning or ClusterWindowsTuning"]);
    with("a: [".to_owned()).fails(1, &["policy.yaml, document 1: not valid YAML"]);
    with(VM.to_owned()).fails(1, &["expected a policy of wintune.dev/v1alpha1, found kind \"VirtualMachine\""]);
    desk.run(&["plan", "-f", &vm, "--policy", "nowhere"]).fails(1, &["nowhere: No such file"]);
    assert_eq!(desk.run(&["plan", "-f", &vm, "--policy", "policy.yaml", "--profile", "migration-safe"]).code, 1);
}

#[test]
fn a_vms_own_annotations_count_as_they_do_for_the_operator() {
    let desk = Desk::new();
    desk.file("policy.yaml", POLICY);
    let plan = |annotations: &str, args: &[&str]| {
        desk.file("vm.yaml", vm_with("  namespace: erp", &format!("  namespace: erp\n  annotations: {annotations}")));
        desk.run(&[&["plan", "-f", "vm.yaml"], args].concat())
    };
    let policy = &["--policy", "policy.yaml"][..];
    let out = "{wintune.dev/tune: \"false\", wintune.dev/reason: \"vendor says no\"}";
    plan(out, policy).ends(0, &["erp/ledger: opted out by annotation (vendor says no)"]);
    plan("{wintune.dev/tune: \"true\"}", policy).ends(2, &["15 to write"]);
    plan("{wintune.dev/tune: \"maybe\"}", policy).ends(0, &["must be \"true\" or \"false\""]);
    plan("{wintune.dev/profile: fast}", &[]).fails(1, &["\"fast\" is not known"]);
    plan("{wintune.dev/profile: fast}", &["--profile", "migration-safe"]).ends(2, &["15 to write"]);
    // Consent is a sign of Windows: what the hold asks for is enough.
    let unlabelled = vm_with("harvesterhci.io/os: windows, ", "");
    let weak = format!("{unlabelled}        clock: {{timer: {{hyperv: {{}}}}}}\n");
    desk.plan(&weak).ends(2, &["perhaps Windows", "annotate it wintune.dev/tune=true"]);
    let annotated = weak.replace("  namespace: erp", "  namespace: erp\n  annotations: {wintune.dev/tune: \"true\"}");
    let run = desk.plan(annotated);
    run.ends(2, &["erp/ledger: Windows (an administrator's annotation asks for this VM"]);
    assert!(!run.out.contains("proposed only"), "{}", run.out);
}

#[test]
fn words_of_others_do_not_reach_the_terminal_raw() {
    let desk = Desk::new();
    let evil = "a\u{1b}[2J\u{9b}31m\u{7f}\u{7}\r\n\u{85}b";
    let vm = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
        "metadata": {"name": evil, "namespace": evil, "labels": {"harvesterhci.io/os": "windows", "kubevirt.io/os": evil},
            "annotations": {"vm.kubevirt.io/os": format!("win{evil}"), evil: evil}},
        "spec": {"runStrategy": evil, "preference": {"name": format!("windows{evil}")}, "template": {"spec": {
            "architecture": "amd64", "volumes": [{"name": evil, "containerDisk": {"image": format!("vmdp{evil}")}}],
            "domain": {"memory": {"guest": evil}, "devices": {evil: evil}, "cpu": {"model": evil},
                "features": {"hyperv": {"vapic": {"enabled": false, evil: evil}}},
                "clock": {"timezone": evil, "timer": {"rtc": {"tickPolicy": evil}}}}}}}});
    // As JSON text may have them: YAML takes control characters only spelled out.
    let spelled = |value: &Value| {
        let spell = |c: char| if c.is_control() { format!("\\u{:04x}", u32::from(c)) } else { c.to_string() };
        value.to_string().chars().map(spell).collect::<String>()
    };
    let file = desk.file("vm.json", spelled(&vm));
    for output in ["table", "json", "yaml", "diff", "patch"] {
        let run = desk.run(&["plan", "-f", &file, "-o", output]);
        assert!(run.err.is_empty(), "{}", run.err);
    }
    desk.run(&["explain", "-f", &file]);
    let json = desk.run(&["plan", "-f", &file, "-o", "json"]).json();
    assert_eq!(json["items"][0]["vm"]["name"], evil);
    // Each fault stays on its line.
    let mut wrong = vm.clone();
    wrong["kind"] = json!(evil);
    desk.file("wrong.json", spelled(&wrong));
    desk.run(&["plan", "-f", "wrong.json"]).fails(1, &["found kind \"a\\u{1b}[2J"]);
    let mut policy: Value = serde_saphyr::from_str(POLICY).unwrap();
    policy["spec"]["apply"] = json!({"mode": evil});
    desk.file("policy.json", spelled(&policy));
    desk.run(&["plan", "-f", &file, "--policy", "policy.json"]).fails(1, &["policy.json, document 1"]);
    policy["spec"]["apply"] = json!({evil: evil});
    desk.file("policy.json", spelled(&policy));
    desk.run(&["plan", "-f", &file, "--policy", "policy.json"]).fails(1, &["is not a field of this kind"]);
}

/// Bytes cut, doubled and replaced: whatever comes of it, it is said in one of the known ways.
#[test]
fn damaged_files_never_panic() {
    let desk = Desk::new();
    let whole =
        domain_with("features: {hyperv: {relaxed: {}, synictimer: {direct: {}}}}\nclock: {utc: {}, timer: {pit: {}}}");
    let mut state = 7_u64;
    let mut random = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    for _ in 0..150 {
        let mut bytes = whole.clone().into_bytes();
        for _ in 0..=random(3) {
            let at = random(bytes.len());
            let odd = b"\0\t\n\r \"#&'*-:?[]{}|>!%@`~,\xff\xc3a0"[random(28)];
            match random(4) {
                0 => bytes.truncate(at + 1),
                1 => bytes[at] = odd,
                2 => bytes.insert(at, odd),
                _ => drop(bytes.remove(at)),
            }
        }
        let run = desk.plan(&bytes);
        let fault = run.code == 1 && run.err.starts_with("error: ");
        assert!(fault || (matches!(run.code, 0 | 2) && run.err.is_empty()), "{}: {}", run.code, run.err);
    }
}

#[test]
fn an_empty_list_is_nothing_to_do() {
    // As `kubectl get vm -o yaml` prints a namespace without VMs.
    let desk = Desk::new();
    desk.plan("apiVersion: v1\nkind: List\nitems: []\n").ends(0, &[]);
    let policy = desk.file("empty.yaml", "apiVersion: v1\nkind: List\nitems: []\n");
    let vm = desk.file("vm.yaml", VM);
    desk.run(&["plan", "-f", &vm, "--policy", &policy]).fails(1, &["empty.yaml: empty, expected a WindowsTuning"]);
}

#[test]
fn a_patch_of_a_vm_from_the_cluster_is_for_that_vm_alone() {
    let desk = Desk::new();
    let vm = desk.file("vm.yaml", vm_with("metadata:\n", "metadata:\n  uid: abc\n  generation: 7\n"));
    let patch = desk.run(&["plan", "-f", &vm, "-o", "patch"]);
    let patch: Value = serde_json::from_str(&patch.ends(2, &[]).out).unwrap();
    assert_eq!(patch[0], serde_json::json!({"op": "test", "path": "/metadata/uid", "value": "abc"}));
    assert_eq!(patch[1], serde_json::json!({"op": "test", "path": "/metadata/generation", "value": 7}));
}

#[test]
fn what_one_vm_asks_for_in_vain_hides_no_other() {
    let desk = Desk::new();
    let odd = vm_with("metadata:\n", "metadata:\n  annotations: {wintune.dev/profile: turbo}\n");
    let file = desk.file("two.yaml", format!("{odd}---\n{VM}"));
    let run = desk.run(&["plan", "-f", &file]);
    assert_eq!((run.code, run.err.lines().count()), (1, 1));
    assert!(run.err.contains("erp/ledger: profile \"turbo\" is not known"), "{}", run.err);
    assert!(run.out.contains("15 to write"), "{}", run.out);
}

#[test]
fn what_the_operator_would_make_of_it_is_said() {
    let desk = Desk::new();
    desk.plan(vm_with("runStrategy: Halted", "runStrategy: Always"))
        .ends(2, &["the operator waits: run strategy Always"]);
    let out = vm_with("metadata:\n", "metadata:\n  annotations: {wintune.dev/tune: \"false\"}\n");
    desk.plan(out).ends(2, &["the operator writes nothing: opted out by annotation"]);
    let vm = desk.file("vm.yaml", VM);
    let policy = desk.file(
        "policy.yaml",
        "apiVersion: wintune.dev/v1alpha1\nkind: WindowsTuning\nmetadata: {name: a}\nspec: {selector: {}}\n",
    );
    desk.run(&["plan", "-f", &vm, "--policy", &policy]).ends(2, &["the operator only shows it: mode Propose"]);
}

#[test]
fn a_policys_fault_names_its_field() {
    let desk = Desk::new();
    let vm = desk.file("vm.yaml", VM);
    let policy = desk.file(
        "policy.yaml",
        "apiVersion: wintune.dev/v1alpha1\nkind: WindowsTuning\nmetadata: {name: a}\nspec: {selector: {}, apply: {mode: Always}}\n",
    );
    desk.run(&["plan", "-f", &vm, "--policy", &policy])
        .fails(1, &["policy.yaml, document 1: spec.apply.mode: \"Always\" is not one of Propose, WhenStopped"]);
}
