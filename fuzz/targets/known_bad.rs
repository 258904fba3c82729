//! Rules of known-bad combinations: a file with a fault is answered with that fault, never with a panic.
#![no_main]

use libfuzzer_sys::{Corpus, fuzz_target};
use wintune::plan::known_bad::parse_rules;

fuzz_target!(|bytes: &[u8]| -> Corpus {
    let Ok(text) = std::str::from_utf8(bytes) else { return Corpus::Reject };
    let first = parse_rules(text);
    assert_eq!(first.is_ok(), parse_rules(text).is_ok(), "the same text is not the same twice");
    if let Err(fault) = first {
        assert!(!fault.to_string().is_empty());
    }
    Corpus::Keep
});
