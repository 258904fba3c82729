//! The boundaries of the design, checked on the source itself: the planner and its neighbours are pure, only `apply`
//! writes, and no file grows beyond what one person reads at once.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)] // a test fails by panicking

use std::path::{Path, PathBuf};

/// Values in, values out: no client, no clock, no file, no environment, no async. A folder that does not exist yet
/// is held to it from its first file on.
const PURE: [&str; 4] = ["src/plan", "src/readiness", "src/rollout", "src/verdict"];

/// Words that no pure file has, wherever they stand: grouped imports hide paths, so words are looked for.
const IMPURE: [&str; 26] = [
    "Api",
    "Client",
    "Instant",
    "SystemTime",
    "async",
    "await",
    "axum",
    "chrono",
    "client",
    "elapsed",
    "env",
    "eprintln",
    "fs",
    "futures",
    "getrandom",
    "hyper",
    "k8s_controller",
    "prometheus",
    "rand",
    "reqwest",
    "rustls",
    "stderr",
    "stdin",
    "stdout",
    "tokio",
    "tracing",
];

/// Sequences that no pure file has, where the word alone is one that a setting may have.
const IMPURE_PATHS: [&[&str]; 12] = [
    &[":", ":", "now"],
    &["println", "!"],
    &["std", ":", ":", "io"],
    &["std", ":", ":", "net"],
    &["std", ":", ":", "process"],
    &["std", ":", ":", "thread"],
    &["kube", ":", ":", "api"],
    &["kube", ":", ":", "runtime"],
    &["crate", ":", ":", "apply"],
    &["crate", ":", ":", "cli"],
    &["crate", ":", ":", "controller"],
    &["crate", ":", ":", "observe"],
];

/// The only writers.
const WRITERS: [&str; 2] = ["src/apply/", "src/cli/restore.rs"];

/// Files that write and should not. Each is a fault that waits for its repair; one that is repaired must leave the list.
const WRITES_AND_SHOULD_NOT: [&str; 0] = [];

/// Every writing method of `kube::Api` takes one of these.
const PARAMS: [&str; 4] = ["DeleteParams", "EvictParams", "PatchParams", "PostParams"];

/// Writing methods whose names nothing else in this crate has.
const METHODS: [&str; 12] = [
    "create",
    "create_subresource",
    "delete",
    "delete_collection",
    "evict",
    "patch",
    "patch_metadata",
    "patch_scale",
    "patch_status",
    "patch_subresource",
    "replace_status",
    "replace_subresource",
];

const MAX_LINES: usize = 600;

#[test]
fn pure_modules_are_pure() {
    let mut seen = 0;
    let mut found = Vec::new();
    for file in files("src").into_iter().filter(|f| PURE.iter().any(|p| f.starts_with(p)) && !is_tests(f)) {
        seen += 1;
        found.extend(impurities(&read(&file)).into_iter().map(|word| format!("{}: {word}", file.display())));
    }
    assert!(seen >= 14, "only {seen} files were found");
    assert!(found.is_empty(), "pure modules name what they must not:\n{}", found.join("\n"));
}

#[test]
fn only_apply_writes() {
    let mut found = Vec::new();
    for file in files("src") {
        let name = file.to_str().unwrap();
        if WRITERS.iter().any(|w| name.starts_with(w)) || is_tests(&file) {
            continue;
        }
        let writes = writes(&read(&file));
        match (writes.first(), WRITES_AND_SHOULD_NOT.contains(&name)) {
            (Some(what), false) => found.push(format!("{name}: {what}")),
            (None, true) => found.push(format!("{name} no longer writes: take it off WRITES_AND_SHOULD_NOT")),
            _ => {}
        }
    }
    assert!(found.is_empty(), "writers outside src/apply:\n{}", found.join("\n"));
    // The check sees the writers where they are.
    assert!(files("src/apply").iter().any(|f| !writes(&read(f)).is_empty()));
    assert!(!writes(&read(Path::new("src/cli/restore.rs"))).is_empty());
}

#[test]
fn files_are_short() {
    let long: Vec<String> = files("src")
        .into_iter()
        .map(|f| (read(&f).lines().count(), f))
        .filter(|(lines, _)| *lines > MAX_LINES)
        .map(|(lines, f)| format!("{} has {lines} lines", f.display()))
        .collect();
    assert!(long.is_empty(), "more than {MAX_LINES} lines:\n{}", long.join("\n"));
}

#[test]
fn the_check_of_purity_can_fail() {
    for bad in [
        "use kube::Client;",
        "use kube::{core::ObjectMeta, Api};",
        "use kube::client::Body;",
        "use std::{collections::BTreeMap, env};",
        "fn a() { let _ = std::fs::read(\"x\"); }",
        "fn a() -> u64 { SystemTime::now().elapsed() }",
        "fn a() { let t = Timestamp::now(); }",
        "fn a() { let t = jiff :: Timestamp :: now(); }",
        "use tokio::sync::Mutex;",
        "async fn a() {}",
        "fn a() { b.await; }",
        "use crate::observe::live;",
        "use crate::apply::vm;",
        // Code behind the tests counts again.
        "fn a() {}\n#[cfg(test)]\nmod tests {\n    use std::fs;\n}\nfn b() { std::fs::read(p); }",
        // A comment that looks like a string, and the other way round.
        "// \" \nuse tokio::sync;",
        "const A: &str = \"//\"; use tokio::sync;",
        "fn a<'x>(b: &'x str) -> char { '\"' } use tokio::sync;",
        "const A: &str = r#\"a \" b\"#; use tokio::sync;",
    ] {
        assert!(!impurities(bad).is_empty(), "not found: {bad}");
    }
    for good in [
        "//! No tokio, no Client, no fs.\nfn a() {}",
        "/* tokio /* nested */ async */ fn a() {}",
        "const A: &str = \"Timestamp::now() of the Client, async\";",
        "const A: &str = r#\"async \" fs\"#;",
        "fn a(now: Timestamp) -> Instance { Instance { now } }",
        "fn a() {}\n#[cfg(test)]\nmod tests {\n    use std::fs;\n}\n",
        "fn a(tuning: &Tuning) -> Mode { tuning.apply.mode }",
    ] {
        assert_eq!(impurities(good), Vec::<String>::new(), "{good}");
    }
}

#[test]
fn the_check_of_writers_can_fail() {
    for bad in [
        "async fn a(api: Api<Pod>) { api.patch(\"n\", &p, &q).await; }",
        "async fn a(api: Api<Pod>) { api\n    .replace_status(\"n\", &Default::default(), &q).await; }",
        "async fn a(api: Api<Pod>) { api.replace(&name, &params(1, 2), &q).await; }",
        "async fn a(api: Api<Pod>) { Api::create(&api, &p, &q).await; }",
        "use kube::api::{Api, PostParams};",
    ] {
        assert!(!writes(bad).is_empty(), "not found: {bad}");
    }
    for good in [
        "fn a(s: &str) -> String { s.replace('/', \".\") }",
        "fn a(s: &str) -> String { s.replace(f(1, 2, 3), \"a, b, c\") }",
        "/// Never `api.patch(`.\nfn a() {}",
        "fn a() { let patch = patch::undo_patch(1); }",
        "fn a() { render::patch(one); }",
    ] {
        assert_eq!(writes(good), Vec::<String>::new(), "{good}");
    }
}

/// Every Rust file below a folder, as paths from the root of the checkout.
fn files(folder: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display())) {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                found.push(path.strip_prefix(root()).unwrap().to_owned());
            }
        }
    }
    found.sort();
    found
}

/// Whether a file is the test module of the module that its folder belongs to.
fn is_tests(file: &Path) -> bool {
    let folder = file.parent().unwrap();
    let module = [folder.join("mod.rs"), folder.with_extension("rs")].into_iter().find(|m| root().join(m).exists());
    file.ends_with("tests.rs") && module.is_some_and(|m| read(&m).contains("#[cfg(test)]\nmod tests;"))
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(file: &Path) -> String {
    std::fs::read_to_string(root().join(file)).unwrap()
}

fn impurities(source: &str) -> Vec<String> {
    let tokens = tokens(&without_tests(source));
    let words = tokens.iter().filter(|t| IMPURE.contains(&t.as_str())).cloned();
    let paths = IMPURE_PATHS.iter().filter(|p| contains(&tokens, p)).map(|p| p.concat());
    words.chain(paths).collect()
}

/// What of a source calls a writing method of `kube::Api`, or holds what such a call needs.
fn writes(source: &str) -> Vec<String> {
    let tokens = tokens(&without_tests(source));
    let mut found: Vec<String> = tokens.iter().filter(|t| PARAMS.contains(&t.as_str())).cloned().collect();
    for (index, window) in tokens.windows(3).enumerate() {
        let [before, name, "("] = [&*window[0], &*window[1], &*window[2]] else { continue };
        // A method of `Api` called by its path has the `Api` itself and at least two more arguments, and
        // `str::replace`, which shares a name with one, has two arguments where that has three.
        let many = || arguments(&tokens[index + 2..]) >= 3;
        let writes = match (before, name) {
            ("." | ":", "replace") => many(),
            (".", _) => METHODS.contains(&name),
            (":", _) => METHODS.contains(&name) && many(),
            _ => false,
        };
        if writes {
            found.push(format!("{name}("));
        }
    }
    found
}

/// How many arguments stand between the parenthesis that `tokens` open with and its partner.
fn arguments(tokens: &[String]) -> usize {
    let (mut depth, mut commas) = (0, 0);
    for token in tokens {
        match token.as_str() {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth -= 1,
            "," if depth == 1 => commas += 1,
            _ => {}
        }
        if depth == 0 {
            break;
        }
    }
    commas + 1
}

fn contains(tokens: &[String], sequence: &[&str]) -> bool {
    tokens.windows(sequence.len()).any(|window| window.iter().zip(sequence).all(|(a, b)| a == b))
}

/// A source without its test modules: from `#[cfg(test)]` before a `mod` to the brace that closes it, which rustfmt
/// puts at the start of a line.
fn without_tests(source: &str) -> String {
    let lines: Vec<&str> = source.lines().collect();
    let (mut kept, mut inside) = (String::new(), false);
    for (index, line) in lines.iter().enumerate() {
        let module = lines.get(index + 1).is_some_and(|next| next.starts_with("mod ") && next.ends_with('{'));
        inside |= *line == "#[cfg(test)]" && module;
        if !inside {
            kept.push_str(line);
            kept.push('\n');
        }
        inside &= *line != "}";
    }
    kept
}

/// The words and marks of a source, without comments and without what stands in quotes.
fn tokens(source: &str) -> Vec<String> {
    let chars: Vec<char> = source.chars().collect();
    let at = |i: usize| chars.get(i).copied().unwrap_or('\0');
    let word = |c: char| c.is_alphanumeric() || c == '_';
    let mut tokens = Vec::new();
    let mut i = 0;
    while i < chars.len() {
        let c = at(i);
        if c == '/' && at(i + 1) == '/' {
            while i < chars.len() && at(i) != '\n' {
                i += 1;
            }
        } else if c == '/' && at(i + 1) == '*' {
            let mut depth = 0;
            loop {
                match (at(i), at(i + 1)) {
                    ('/', '*') => (depth, i) = (depth + 1, i + 2),
                    ('*', '/') => (depth, i) = (depth - 1, i + 2),
                    _ => i += 1,
                }
                if depth == 0 || i >= chars.len() {
                    break;
                }
            }
        } else if c == 'r' && (at(i + 1) == '"' || (at(i + 1) == '#' && matches!(at(i + 2), '"' | '#'))) {
            let hashes = (i + 1..).take_while(|j| at(*j) == '#').count();
            i += 2 + hashes;
            while i < chars.len() && !(at(i) == '"' && (i + 1..).take(hashes).all(|j| at(j) == '#')) {
                i += 1;
            }
            i += 1 + hashes;
        } else if c == '"' {
            i += 1;
            while i < chars.len() && at(i) != '"' {
                i += if at(i) == '\\' { 2 } else { 1 };
            }
            i += 1;
        } else if c == '\'' && (at(i + 1) == '\\' || at(i + 2) == '\'') {
            // A character; otherwise the quote opens a lifetime.
            i += if at(i + 1) == '\\' { 3 } else { 2 };
            while i < chars.len() && at(i) != '\'' {
                i += 1;
            }
            i += 1;
        } else if word(c) {
            let start = i;
            while word(at(i)) {
                i += 1;
            }
            tokens.push(chars[start..i].iter().collect());
        } else {
            if !c.is_whitespace() {
                tokens.push(c.to_string());
            }
            i += 1;
        }
    }
    tokens
}
