//! A control plane leaves nothing behind, however its test ends.

#![allow(clippy::expect_used, clippy::panic)] // a test fails by panicking

mod support {
    pub mod processes;
}

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use harness::ControlPlane;

use support::processes::processes_of;

const HELPER_ENV: &str = "HARNESS_TEST_RUN_UNTIL_KILLED";

#[tokio::test]
async fn a_dropped_control_plane_leaves_nothing() {
    let plane = ControlPlane::start().await.expect("start");
    let begin = Instant::now();
    let crds = plane.install_kubevirt_crds().await.expect("install CRDs");
    println!("{crds} installed in {:.1?}", begin.elapsed());
    let dir = plane.dir().to_owned();
    assert_eq!(processes_of(&dir).len(), 2, "etcd and kube-apiserver");
    drop(plane);
    assert_eq!(processes_of(&dir), Vec::<String>::new());
    assert!(!dir.exists(), "{} is still there", dir.display());
}

#[test]
fn a_killed_test_process_leaves_no_process() {
    // This very program again, running only the test below.
    let child = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "run_until_killed", "--nocapture"])
        .env(HELPER_ENV, "1")
        .stdout(Stdio::piped())
        .spawn()
        .expect("run it");
    let mut tests = Killed(child);
    let mut lines = BufReader::new(tests.0.stdout.take().expect("its output")).lines();
    let folder = lines
        .by_ref()
        .map_while(Result::ok)
        .find_map(|line| line.split_once("running in ").map(|(_, folder)| folder.to_owned()))
        .expect("the folder of its control plane");
    let folder = Path::new(&folder);
    assert_eq!(processes_of(folder).len(), 2, "etcd and kube-apiserver");
    drop(tests);
    let deadline = Instant::now() + Duration::from_secs(10);
    while !processes_of(folder).is_empty() {
        assert!(Instant::now() < deadline, "still running: {:#?}", processes_of(folder));
        std::thread::sleep(Duration::from_millis(50));
    }
    // Nobody was left to remove it.
    std::fs::remove_dir_all(folder).expect("remove its folder");
}

/// Does nothing by itself; the test above runs it in a process of its own and kills that.
#[tokio::test]
async fn run_until_killed() {
    if std::env::var_os(HELPER_ENV).is_some() {
        let plane = ControlPlane::start().await.expect("start");
        println!("running in {}", plane.dir().display());
        std::future::pending::<()>().await;
    }
}

/// A process that gets SIGKILL when dropped, so that it does not outlive a failing test either.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // Both fail only when it has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
