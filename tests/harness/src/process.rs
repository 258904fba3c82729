//! Child processes that end with us: when their handle is dropped, and when this process is killed.

use std::fs::OpenOptions;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::LazyLock;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use rustix::process::{Pid, Signal, kill_process};

/// How many lines of a log go into an error.
const TAIL_LINES: usize = 20;
/// How often an ending process is looked at; ends take milliseconds (etcd) to seconds (kube-apiserver).
const POLL: Duration = Duration::from_millis(20);

type Job = (Command, Sender<io::Result<Child>>);

/// The kernel ties a parent-death signal to the *thread* that forked, and test threads end long before the test
/// process does. So one thread that lives as long as the process forks for everyone.
static SPAWNER: LazyLock<io::Result<Sender<Job>>> = LazyLock::new(|| {
    let (jobs, queue) = channel::<Job>();
    std::thread::Builder::new().name("harness-spawner".into()).spawn(move || {
        for (mut command, reply) in queue {
            // A caller that has gone away takes no reply; the child that nobody holds must not stay.
            if let Err(unsent) = reply.send(command.spawn())
                && let Ok(mut child) = unsent.0
            {
                let _ = child.kill();
                let _ = child.wait();
            }
        }
    })?;
    Ok(jobs)
});

/// A running server. Dropping it kills it and waits for its end.
pub(crate) struct Daemon {
    name: &'static str,
    child: Child,
    log: PathBuf,
}

impl Daemon {
    /// Starts `program` with standard output and error appended to `log`.
    ///
    /// # Errors
    /// When the log cannot be opened or `setpriv` cannot be run. That `program` itself is missing shows in the log.
    pub(crate) fn spawn(name: &'static str, program: &Path, args: &[String], log: &Path) -> Result<Self> {
        Self::spawn_with(name, program, args, &[], log)
    }

    /// [`Daemon::spawn`] with variables added to the environment. Proxy settings of the caller are left out: they are
    /// not for servers on this machine.
    ///
    /// # Errors
    /// As [`Daemon::spawn`].
    pub(crate) fn spawn_with(
        name: &'static str,
        program: &Path,
        args: &[String],
        variables: &[(&str, &str)],
        log: &Path,
    ) -> Result<Self> {
        let out = OpenOptions::new()
            .create(true)
            .append(true)
            .open(log)
            .with_context(|| format!("open the log {}", log.display()))?;
        let err = out.try_clone().with_context(|| format!("share the log {}", log.display()))?;
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "KILL", "--"])
            .arg(program)
            .args(args)
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(err);
        for proxy in ["http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"] {
            command.env_remove(proxy);
        }
        let spawner = SPAWNER.as_ref().map_err(|error| anyhow!("start the thread that starts processes: {error}"))?;
        let (reply, answer) = channel();
        spawner.send((command, reply)).context("ask the spawner thread")?;
        let child = answer.recv().context("hear from the spawner thread")?.with_context(|| {
            format!("run setpriv (Debian's package util-linux), which starts {name} so that it dies with this process")
        })?;
        Ok(Self { name, child, log: log.to_owned() })
    }

    /// Fails, with the end of the log, when the process has ended.
    pub(crate) fn check_running(&mut self) -> Result<()> {
        match self.exited()? {
            None => Ok(()),
            Some(status) => {
                Err(anyhow!("{} ended early ({status}); the end of its log:\n{}", self.name, self.log_tail()))
            }
        }
    }

    /// SIGTERM, then a wait for the end. A process that has not ended after `patience` is killed and reported.
    pub(crate) async fn terminate(&mut self, patience: Duration) -> Result<()> {
        if self.exited()?.is_some() {
            return Ok(());
        }
        // The child is ours and not yet waited for, so its number cannot mean another process.
        kill_process(Pid::from_child(&self.child), Signal::TERM)
            .with_context(|| format!("send SIGTERM to {}", self.name))?;
        let deadline = Instant::now() + patience;
        while self.exited()?.is_none() {
            if Instant::now() > deadline {
                let tail = self.log_tail();
                self.kill();
                return Err(anyhow!(
                    "{} did not end within {patience:?} of SIGTERM and was killed; the end of its log:\n{tail}",
                    self.name
                ));
            }
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }

    /// The last lines of the log, for errors.
    pub(crate) fn log_tail(&self) -> String {
        match std::fs::read(&self.log) {
            Ok(bytes) => tail(&String::from_utf8_lossy(&bytes), TAIL_LINES),
            Err(error) => format!("(no log: {}: {error})", self.log.display()),
        }
    }

    pub(crate) fn exited(&mut self) -> Result<Option<ExitStatus>> {
        self.child.try_wait().with_context(|| format!("look whether {} has ended", self.name))
    }

    /// SIGKILL, then a wait for the end.
    pub(crate) fn kill(&mut self) {
        // Both fail only when the process has ended already, which is what they are for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.kill();
    }
}

fn tail(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.lines().collect();
    all.get(all.len().saturating_sub(lines)..).unwrap_or_default().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tail_keeps_the_last_lines() {
        assert_eq!(tail("a\nb\nc\n", 2), "b\nc");
        assert_eq!(tail("a", 2), "a");
        assert_eq!(tail("", 2), "");
    }

    #[test]
    fn an_early_end_is_reported_with_the_log() {
        let dir = tempfile::tempdir().expect("temp dir");
        let args = ["-c".to_owned(), "echo out of cheese; exit 3".to_owned()];
        let mut daemon = Daemon::spawn("sh", Path::new("sh"), &args, &dir.path().join("log")).expect("spawn");
        daemon.child.wait().expect("wait");
        let error = daemon.check_running().expect_err("it has ended").to_string();
        assert!(error.contains("sh ended early") && error.contains("out of cheese"), "{error}");
    }

    #[test]
    fn a_child_outlives_the_thread_that_asked_for_it() {
        let dir = tempfile::tempdir().expect("temp dir");
        let log = dir.path().join("log");
        let mut daemon = std::thread::spawn(move || {
            Daemon::spawn("sleep", Path::new("sleep"), &["60".to_owned()], &log).expect("spawn")
        })
        .join()
        .expect("join");
        std::thread::sleep(Duration::from_millis(100));
        daemon.check_running().expect("still there");
    }
}
