//! Small helpers to read and change JSON objects by pointer.

use serde_json::{Map, Value};

/// The string at `pointer`, if there is one.
pub(crate) fn text<'a>(value: &'a Value, pointer: &str) -> Option<&'a str> {
    value.pointer(pointer).and_then(Value::as_str)
}

/// The boolean at `pointer`, if there is one.
pub(crate) fn flag(value: &Value, pointer: &str) -> Option<bool> {
    value.pointer(pointer).and_then(Value::as_bool)
}

/// The integer at `pointer`, if there is one.
pub(crate) fn number(value: &Value, pointer: &str) -> Option<i64> {
    value.pointer(pointer).and_then(Value::as_i64)
}

/// The list at `pointer`, empty where there is none.
pub(crate) fn list<'a>(value: &'a Value, pointer: &str) -> &'a [Value] {
    value.pointer(pointer).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// The list at `pointer` for changing, empty where there is none.
pub(crate) fn list_mut<'a>(value: &'a mut Value, pointer: &str) -> &'a mut [Value] {
    value.pointer_mut(pointer).and_then(Value::as_array_mut).map_or(&mut [], Vec::as_mut_slice)
}

/// Whether something other than null is at `pointer`.
pub(crate) fn present(value: &Value, pointer: &str) -> bool {
    value.pointer(pointer).is_some_and(|v| !v.is_null())
}

/// Writes `new` at `pointer`; missing objects on the way are made. Does not enter lists.
pub(crate) fn set(value: &mut Value, pointer: &str, new: Value) {
    let mut keys: Vec<String> = pointer.split('/').skip(1).map(unescape).collect();
    let Some(last) = keys.pop() else { return };
    let mut place = value;
    for key in keys {
        let Some(next) = object(place) else { return };
        place = next.entry(key).or_insert_with(|| Value::Object(Map::new()));
    }
    if let Some(place) = object(place) {
        place.insert(last, new);
    }
}

/// Writes `new` at `pointer` unless something is there.
pub(crate) fn set_default(value: &mut Value, pointer: &str, new: Value) {
    if !present(value, pointer) {
        set(value, pointer, new);
    }
}

/// Removes what is at `pointer`.
pub(crate) fn remove(value: &mut Value, pointer: &str) -> Option<Value> {
    let (parent, last) = pointer.rsplit_once('/')?;
    value.pointer_mut(parent)?.as_object_mut()?.remove(&unescape(last))
}

fn object(value: &mut Value) -> Option<&mut Map<String, Value>> {
    if value.is_null() {
        *value = Value::Object(Map::new());
    }
    value.as_object_mut()
}

fn unescape(key: &str) -> String {
    key.replace("~1", "/").replace("~0", "~")
}

/// Name, namespace and UID of an object, empty where they are missing.
pub(crate) fn name(object: &Value) -> &str {
    text(object, "/metadata/name").unwrap_or_default()
}

pub(crate) fn namespace(object: &Value) -> &str {
    text(object, "/metadata/namespace").unwrap_or_default()
}

pub(crate) fn uid(object: &Value) -> &str {
    text(object, "/metadata/uid").unwrap_or_default()
}

/// Whether the object is being deleted.
pub(crate) fn deleting(object: &Value) -> bool {
    present(object, "/metadata/deletionTimestamp")
}

/// The condition of `kind` in an object's status.
pub(crate) fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    list(object, "/status/conditions").iter().find(|c| text(c, "/type") == Some(kind))
}

/// Whether the condition of `kind` is True.
pub(crate) fn condition_true(object: &Value, kind: &str) -> bool {
    condition(object, kind).is_some_and(|c| text(c, "/status") == Some("True"))
}
