//! Which processes of a control plane are running.

use std::path::Path;

/// The command lines of all running processes in which `dir` appears.
pub fn processes_of(dir: &Path) -> Vec<String> {
    let needle = dir.to_str().expect("a UTF-8 path");
    let entries = std::fs::read_dir("/proc").expect("read /proc").flatten();
    // A process that has just ended, or is being waited for, has no command line any more.
    let lines = entries.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    lines.map(|line| String::from_utf8_lossy(&line).replace('\0', " ")).filter(|line| line.contains(needle)).collect()
}
