//! What was compared, what was not, and what differed.

use std::collections::BTreeMap;

/// Counts per folder.
#[derive(Default)]
pub(crate) struct Report {
    folders: BTreeMap<String, Folder>,
    mismatches: Vec<String>,
}

#[derive(Default)]
struct Folder {
    compared: usize,
    unsupported: BTreeMap<String, usize>,
}

impl Report {
    /// One request was compared; `difference` says what was not as recorded.
    pub(crate) fn compared(&mut self, folder: &str, request: &str, difference: Option<String>) {
        self.folders.entry(folder.to_owned()).or_default().compared += 1;
        if let Some(difference) = difference {
            println!("MISMATCH {folder} {request}: {difference}");
            self.mismatches.push(format!("{folder} {request}: {difference}"));
        }
    }

    /// Requests that simvirt does not claim to answer.
    pub(crate) fn unsupported(&mut self, folder: &str, reason: &str, count: usize) {
        let folder = self.folders.entry(folder.to_owned()).or_default();
        *folder.unsupported.entry(reason.to_owned()).or_default() += count;
    }

    /// Takes in another report, about other folders.
    pub(crate) fn add(&mut self, other: Report) {
        self.folders.extend(other.folders);
        self.mismatches.extend(other.mismatches);
    }

    /// Prints the table; fails if anything differed.
    pub(crate) fn finish(self) -> anyhow::Result<()> {
        println!("\n{:<40} {:>8} {:>13}  why not", "folder", "compared", "not supported");
        let (mut compared, mut missing) = (0, 0);
        for (name, folder) in &self.folders {
            let unsupported: usize = folder.unsupported.values().sum();
            compared += folder.compared;
            missing += unsupported;
            println!("{name:<40} {:>8} {unsupported:>13}", folder.compared);
            for (reason, count) in &folder.unsupported {
                println!("{:>63}  {count} x {reason}", "");
            }
        }
        println!("conformance: {compared} requests compared, {missing} not supported");
        anyhow::ensure!(
            self.mismatches.is_empty(),
            "{} of {compared} answers differ from the recorded ones:\n{}",
            self.mismatches.len(),
            self.mismatches.join("\n")
        );
        Ok(())
    }
}
