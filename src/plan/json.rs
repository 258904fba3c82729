//! Reading JSON that other people wrote: `null` is absent, a wrong type is absent, nothing panics.

use serde_json::Value;

/// The value at a JSON pointer below `root`; `null` counts as absent.
pub fn at<'a>(root: &'a Value, pointer: &str) -> Option<&'a Value> {
    root.pointer(pointer).filter(|v| !v.is_null())
}

/// The text at a JSON pointer.
pub fn text<'a>(root: &'a Value, pointer: &str) -> Option<&'a str> {
    at(root, pointer).and_then(Value::as_str)
}

/// The list at a JSON pointer; empty where there is none.
pub fn list<'a>(root: &'a Value, pointer: &str) -> &'a [Value] {
    at(root, pointer).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// A KubeVirt FeatureState: absent, on (`{}` means on) or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The field is not there.
    Absent,
    /// `{}`, `{enabled: true}` or `{enabled: null}`.
    On,
    /// `{enabled: false}`.
    Off,
}

/// Reads a FeatureState whose switch is called `key` (`enabled`, or `present` for timers).
pub fn state(value: Option<&Value>, key: &str) -> State {
    match value {
        None | Some(Value::Null) => State::Absent,
        Some(v) if v.get(key).and_then(Value::as_bool) == Some(false) => State::Off,
        Some(_) => State::On,
    }
}

/// Compares `text` in lower case with a pattern in which a leading or trailing `*` stands for anything.
pub fn matches(pattern: &str, text: &str) -> bool {
    let text = text.to_lowercase();
    match (pattern.strip_prefix('*'), pattern.strip_suffix('*')) {
        (Some(""), _) | (_, Some("")) => true,
        (Some(_), Some(_)) => {
            let inner = pattern.trim_matches('*');
            text.contains(inner)
        }
        (None, Some(start)) => text.starts_with(start),
        (Some(end), None) => text.ends_with(end),
        (None, None) => text == pattern,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_empty_feature_is_on_and_null_is_absent() {
        assert_eq!(state(Some(&json!({})), "enabled"), State::On);
        assert_eq!(state(Some(&json!({"enabled": true})), "enabled"), State::On);
        assert_eq!(state(Some(&json!({"enabled": null})), "enabled"), State::On);
        assert_eq!(state(Some(&json!({"enabled": false})), "enabled"), State::Off);
        assert_eq!(state(Some(&Value::Null), "enabled"), State::Absent);
        assert_eq!(state(None, "enabled"), State::Absent);
    }

    #[test]
    fn patterns_match_at_either_end() {
        assert!(matches("win*", "Windows11"));
        assert!(matches("*vmdp*", "registry.suse.com/suse/vmdp/vmdp:2.5"));
        assert!(matches("*", ""));
        assert!(matches("linux", "Linux"));
        assert!(!matches("linux", "linux2"));
        assert!(matches("*.virtio", "windows.11.virtio"));
    }
}
