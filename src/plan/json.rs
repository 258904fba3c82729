//! Reading JSON that other people wrote: `null` is absent, a wrong type is absent, nothing panics.

use serde_json::Value;

/// Names an item of a list in a place: `/devices/disks/name=rootdisk/cache`. An index moves when somebody else adds or
/// removes an item; a name does not.
pub const BY_NAME: &str = "name=";

/// The value at a place below `root`; `null` counts as absent.
///
/// A place is a JSON pointer in which an item of a list can also be called by its name ([`BY_NAME`]).
pub fn at<'a>(root: &'a Value, place: &str) -> Option<&'a Value> {
    let mut found = root;
    if let Some(rest) = place.strip_prefix('/') {
        for token in rest.split('/') {
            found = match found {
                Value::Object(map) if token.contains('~') => map.get(&token.replace("~1", "/").replace("~0", "~"))?,
                Value::Object(map) => map.get(token)?,
                Value::Array(items) => items.get(index(items, token)?)?,
                _ => return None,
            };
        }
    } else if !place.is_empty() {
        return None;
    }
    (!found.is_null()).then_some(found)
}

/// Where in a list an item is, by its name or its index. The first of several of one name.
pub fn index(items: &[Value], token: &str) -> Option<usize> {
    match token.strip_prefix(BY_NAME) {
        Some(name) => items.iter().position(|i| i.get("name").and_then(Value::as_str) == Some(name)),
        None => token.parse().ok(),
    }
}

/// Whether the switch at a place is `true`.
pub fn flag(root: &Value, place: &str) -> bool {
    at(root, place).and_then(Value::as_bool) == Some(true)
}

/// The whole number at a place.
pub fn count(root: &Value, place: &str) -> Option<u64> {
    at(root, place).and_then(Value::as_u64)
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

/// Compares `text`, whatever the case of its letters, with a lower-case pattern in which a leading or trailing `*` stands
/// for anything.
pub fn matches(pattern: &str, text: &str) -> bool {
    let (pattern, text) = (pattern.as_bytes(), text.as_bytes());
    let starts = |text: &[u8], start: &[u8]| text.get(..start.len()).is_some_and(|t| t.eq_ignore_ascii_case(start));
    match pattern {
        [] => text.is_empty(),
        [b'*'] => true,
        [b'*', inner @ .., b'*'] => {
            inner.is_empty() || text.windows(inner.len()).any(|w| w.eq_ignore_ascii_case(inner))
        }
        [b'*', end @ ..] => {
            text.len() >= end.len() && starts(text.get(text.len() - end.len()..).unwrap_or_default(), end)
        }
        [start @ .., b'*'] => starts(text, start),
        _ => text.eq_ignore_ascii_case(pattern),
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
    fn an_item_is_found_by_its_name_wherever_it_stands() {
        let root = json!({"disks": [{"name": "a"}, {"name": "b", "io": "native", "x/y": 1}, {"name": "b"}, 3]});
        assert_eq!(at(&root, "/disks/name=b/io"), Some(&json!("native")));
        assert_eq!(at(&root, "/disks/1/io"), Some(&json!("native")));
        assert_eq!(at(&root, "/disks/name=b/x~1y"), Some(&json!(1)));
        for absent in
            ["/disks/name=c", "/disks/name=", "/disks/9", "/disks/x", "disks", "/disks/name=a/io", "/disks/3/io"]
        {
            assert_eq!(at(&root, absent), None, "{absent}");
        }
        assert_eq!(at(&root, ""), Some(&root));
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
