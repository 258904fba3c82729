//! Plans of manifests in the shapes that people really run: a table of what must come of each shared case, and golden
//! files for VMs of our own.
//!
//! A golden that differs fails. `WINTUNE_UPDATE_GOLDEN=1` rewrites them and fails too, so that nobody passes by it:
//! read the difference, then run again without it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)] // a test fails by panicking

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use wintune::plan::facts::{Facts, Vm, Wanted};
use wintune::plan::plan;

/// What must come of a case, as far as Hyper-V features and the clock reach.
struct Case {
    name: &'static str,
    /// `Sure`, `Unsure` or `No`; empty where the file is not a VirtualMachine of KubeVirt.
    confidence: &'static str,
    /// Fields that are written.
    writes: &'static [&'static str],
    /// Fields in which the owner's choice stays.
    kept: &'static [&'static str],
    /// Disks whose bus waits for proof.
    waits: &'static [&'static str],
    /// Disks whose bus never moves.
    stays: &'static [&'static str],
    findings: &'static [&'static str],
    holds: &'static [&'static str],
}

const EVERYTHING: &[&str] = &[
    "clock.timer.hpet",
    "clock.timer.hyperv",
    "clock.timer.pit",
    "clock.timer.rtc",
    "clock.utc",
    "features.hyperv.ipi",
    "features.hyperv.relaxed",
    "features.hyperv.reset",
    "features.hyperv.runtime",
    "features.hyperv.spinlocks",
    "features.hyperv.synic",
    "features.hyperv.synictimer",
    "features.hyperv.synictimer.direct",
    "features.hyperv.vapic",
    "features.hyperv.vpindex",
];
/// Everything, and a queue for each vCPU of a virtio network interface.
const AND_QUEUES: &[&str] = &[
    "clock.timer.hpet",
    "clock.timer.hyperv",
    "clock.timer.pit",
    "clock.timer.rtc",
    "clock.utc",
    "devices.networkInterfaceMultiqueue",
    "features.hyperv.ipi",
    "features.hyperv.relaxed",
    "features.hyperv.reset",
    "features.hyperv.runtime",
    "features.hyperv.spinlocks",
    "features.hyperv.synic",
    "features.hyperv.synictimer",
    "features.hyperv.synictimer.direct",
    "features.hyperv.vapic",
    "features.hyperv.vpindex",
];
/// Where relaxed, vapic, spinlocks and the clock are there.
const THE_REST: &[&str] = &[
    "features.hyperv.ipi",
    "features.hyperv.reset",
    "features.hyperv.runtime",
    "features.hyperv.synic",
    "features.hyperv.synictimer",
    "features.hyperv.synictimer.direct",
    "features.hyperv.vpindex",
];
/// What the profile leaves alone and the owner has on.
const BEYOND: &[&str] = &["features.hyperv.frequencies", "features.hyperv.reenlightenment", "features.hyperv.tlbflush"];

const PLAIN: Case =
    Case { name: "", confidence: "Sure", writes: &[], kept: &[], waits: &[], stays: &[], findings: &[], holds: &[] };
/// Complete and more.
const COMPLETE: Case = Case { kept: BEYOND, ..PLAIN };
/// Weak signs only: shown, not written.
const UNSURE: Case = Case { confidence: "Unsure", writes: EVERYTHING, holds: &["unsure-windows"], ..PLAIN };
const LINUX: Case = Case { confidence: "No", ..PLAIN };
const PREFERENCE: Case = Case { writes: EVERYTHING, holds: &["preference-unread"], ..PLAIN };

const CASES: [Case; 25] = [
    Case { name: "case-01", waits: &["vol0"], stays: &["vol1"], ..PREFERENCE },
    Case { name: "case-03", stays: &["vol0"], findings: &["guest-version"], ..PLAIN },
    Case {
        name: "case-04",
        waits: &["vol1"],
        stays: &["vol0", "vol2", "vol3"],
        writes: &["features.hyperv.synictimer.direct"],
        ..PLAIN
    },
    Case { name: "case-06", stays: &["vol0", "vol2"], findings: &["contradicting-signs"], ..COMPLETE },
    Case { name: "case-09", waits: &["vol0"], stays: &["vol1", "vol2", "vol3"], ..UNSURE },
    Case { name: "case-10", confidence: "", ..PLAIN },
    Case { name: "case-13", waits: &["vol0"], ..COMPLETE },
    Case { name: "case-14", stays: &["vol0", "vol2"], writes: EVERYTHING, ..PLAIN },
    Case { name: "case-16", waits: &["vol1"], stays: &["vol0", "vol2"], ..PLAIN },
    Case { name: "case-19", stays: &["vol0", "vol2"], ..PLAIN },
    Case { name: "case-21", stays: &["vol0", "vol2"], ..PLAIN },
    Case { name: "case-23", waits: &["vol0"], stays: &["vol1", "vol2"], writes: THE_REST, ..PLAIN },
    Case {
        name: "case-25",
        findings: &["no-run-strategy", "misplaced-field", "misplaced-field", "misplaced-field"],
        ..UNSURE
    },
    Case { name: "case-31", stays: &["vol0", "vol2"], ..UNSURE },
    Case {
        name: "case-33",
        waits: &["vol1"],
        stays: &["vol0", "vol2"],
        findings: &["migration-blocked"],
        writes: THE_REST,
        ..PLAIN
    },
    Case { name: "case-35", waits: &["vol0"], ..PREFERENCE },
    Case { name: "case-36", findings: &["shareable-disk"], ..LINUX },
    Case { name: "case-40", stays: &["vol0", "vol2", "vol3"], ..COMPLETE },
    Case { name: "case-42", findings: &["no-run-strategy", "misplaced-field", "misplaced-field"], ..UNSURE },
    Case { name: "case-44", writes: AND_QUEUES, stays: &["vol0", "vol2"], ..UNSURE },
    Case { name: "case-45", waits: &["vol0"], stays: &["vol1", "vol2", "vol3"], ..COMPLETE },
    Case { name: "case-48", ..LINUX },
    Case { name: "case-50", ..COMPLETE },
    Case { name: "case-52", ..COMPLETE },
    Case { name: "case-54", ..LINUX },
];

#[test]
fn every_shared_case_leads_to_what_it_must() {
    let folder =
        PathBuf::from(std::env::var("WINTUNE_SHARED").unwrap_or_else(|_| "../shared".to_owned())).join("cases");
    if !folder.is_dir() {
        println!("skipped: no cases in {}", folder.display());
        return;
    }
    let files = yaml_files(&folder);
    let names: BTreeSet<String> = files.iter().map(|f| stem(f)).collect();
    let expected: BTreeSet<String> = CASES.iter().map(|c| c.name.to_owned()).collect();
    assert_eq!(names, expected, "the table and the folder differ");
    for file in files {
        let case = CASES.iter().find(|c| c.name == stem(&file)).unwrap();
        let run = wintune(&["plan", "-o", "json", "-f", file.to_str().unwrap()]);
        let manifest: Value = serde_saphyr::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
        if case.confidence.is_empty() {
            assert_eq!(run.code, 1, "{}", case.name);
            assert!(run.err.contains("expected a VirtualMachine of kubevirt.io"), "{}", run.err);
            assert!(Vm::from_object(&manifest).is_err());
            continue;
        }
        let code = if case.writes.is_empty() { 0 } else { 2 };
        assert_eq!((run.code, run.err.as_str()), (code, ""), "{}", case.name);
        let list: Value = serde_json::from_str(&run.out).unwrap();
        check(case, &list["items"][0]);
        let library = plan(&Facts::offline(Vm::from_object(&manifest).unwrap()), &Wanted::default()).unwrap();
        assert_eq!(
            serde_json::to_value(library).unwrap(),
            list["items"][0],
            "{}: library and binary differ",
            case.name
        );
    }
}

fn check(case: &Case, plan: &Value) {
    let of = |list: &Value, key: &str| -> Vec<String> {
        list.as_array().unwrap().iter().map(|i| i[key].as_str().unwrap().to_owned()).collect()
    };
    let fields = |outcome: &str| -> Vec<String> {
        let settings = plan["settings"].as_array().unwrap();
        let with = settings.iter().filter(|s| s["outcome"]["is"] == outcome);
        with.map(|s| s["field"].as_str().unwrap().to_owned()).collect()
    };
    let name = case.name;
    assert_eq!(plan["detection"]["confidence"], case.confidence, "{name}");
    assert_eq!(fields("write"), case.writes, "{name}");
    assert_eq!(fields("kept"), case.kept, "{name}");
    assert_eq!(fields("refused"), Vec::<String>::new(), "{name}");
    assert_eq!(of(&plan["findings"], "id"), case.findings, "{name}");
    assert_eq!(of(&plan["holds"], "rule"), case.holds, "{name}");
    let buses = |outcome: &str| -> Vec<String> {
        let bus = fields(outcome).into_iter().filter(|f| f.ends_with(".bus"));
        bus.map(|f| f.split(['[', ']']).nth(1).unwrap().to_owned()).collect()
    };
    assert_eq!(buses("waits"), case.waits, "{name}");
    assert_eq!(buses("stays"), case.stays, "{name}");
    // Each of the fifteen is spoken of, and none twice.
    let outcomes = ["write", "satisfied", "kept", "stays"];
    let spoken = outcomes.iter().flat_map(|o| fields(o)).filter(|f| EVERYTHING.contains(&f.as_str())).count();
    assert_eq!(spoken, if case.confidence == "No" { 0 } else { EVERYTHING.len() }, "{name}");
}

/// A day before any review is due.
const TODAY: &str = "2026-12-01";

/// What profile performance comes to on every version of KubeVirt and Harvester, a line for each group of equal ones.
fn by_version(path: &str) -> String {
    let mut lines: Vec<(String, Vec<String>)> = Vec::new();
    let kubevirt = (2..=9).map(|m| ("--kubevirt", format!("1.{m}")));
    let harvester = (4..=9).map(|m| ("--harvester", format!("1.{m}")));
    for (option, version) in kubevirt.chain(harvester) {
        let run =
            wintune(&["plan", "-o", "json", "--date", TODAY, "--profile", "performance", option, &version, "-f", path]);
        assert!(matches!(run.code, 0 | 2) && run.err.is_empty(), "{path}: {}", run.err);
        let list: Value = serde_json::from_str(&run.out).unwrap();
        let plan = &list["items"][0];
        let mut text = String::new();
        for setting in plan["settings"].as_array().unwrap() {
            let (field, outcome) = (setting["field"].as_str().unwrap(), &setting["outcome"]);
            match outcome["is"].as_str().unwrap() {
                "write" => text += &format!("  write {field} {}\n", setting["desired"]),
                "refused" | "stays" => {
                    text += &format!(
                        "  {} {field}: {}\n",
                        outcome["is"].as_str().unwrap(),
                        outcome["rule"].as_str().unwrap()
                    )
                }
                "waits" | "kept" => text += &format!("  {} {field}\n", outcome["is"].as_str().unwrap()),
                _ => {}
            }
        }
        for finding in plan["findings"].as_array().unwrap() {
            text += &format!("  {} {}\n", finding["severity"].as_str().unwrap(), finding["id"].as_str().unwrap());
        }
        let name = format!("{} {version}", option.trim_start_matches("--"));
        match lines.iter_mut().find(|(known, _)| *known == text) {
            Some((_, versions)) => versions.push(name),
            None => lines.push((text, vec![name])),
        }
    }
    lines.into_iter().map(|(text, versions)| format!("{}:\n{text}", versions.join(", "))).collect()
}

#[test]
fn plans_of_our_own_vms_are_as_written_down() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let golden = root.join("tests/golden");
    let update = std::env::var_os("WINTUNE_UPDATE_GOLDEN").is_some();
    let (mut written, mut differing) = (BTreeSet::new(), Vec::new());
    for file in yaml_files(&root.join("tests/fixtures/vms")) {
        // The path is part of no output.
        let file = file.strip_prefix(root).unwrap();
        let path = file.to_str().unwrap();
        let mut outputs: Vec<(String, String)> = Vec::new();
        for (output, ending) in [("table", "txt"), ("json", "json")] {
            let run = wintune(&["plan", "-o", output, "--date", TODAY, "-f", path]);
            assert!(matches!(run.code, 0 | 2) && run.err.is_empty(), "{path}: {}", run.err);
            outputs.push((format!("{}.{ending}", stem(file)), run.out));
        }
        outputs.push((format!("{}.versions.txt", stem(file)), by_version(path)));
        for (name, out) in outputs {
            let known = std::fs::read_to_string(golden.join(&name)).unwrap_or_default();
            if known != out {
                let diff = similar::TextDiff::from_lines(&known, &out);
                differing.push(diff.unified_diff().header(&name, "now").to_string());
                if update {
                    std::fs::write(golden.join(&name), &out).unwrap();
                }
            }
            written.insert(name);
        }
    }
    let there: BTreeSet<String> =
        std::fs::read_dir(&golden).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert!(written.len() >= 33, "only {written:?}");
    assert!(differing.is_empty(), "plans differ from tests/golden:\n{}", differing.join("\n"));
    assert_eq!(there, written, "goldens without a fixture, or the other way round");
    assert!(!update, "the goldens are as they were; run again without WINTUNE_UPDATE_GOLDEN");
}

/// What the binary came to.
struct Run {
    code: i32,
    out: String,
    err: String,
}

fn wintune(args: &[&str]) -> Run {
    let output = Command::new(env!("CARGO_BIN_EXE_wintune")).args(args).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Run { code: output.status.code().unwrap(), out: text(output.stdout), err: text(output.stderr) }
}

fn yaml_files(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder)
        .unwrap_or_else(|e| panic!("{}: {e}", folder.display()))
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "yaml"))
        .collect();
    files.sort();
    files
}

fn stem(file: &Path) -> String {
    file.file_stem().unwrap().to_str().unwrap().to_owned()
}
