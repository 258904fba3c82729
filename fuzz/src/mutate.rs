//! Mutations of fields beside libFuzzer's own of bytes, which seldom leave a manifest that still says something: with
//! them the planner is fuzzed, and not only the parser in front of it.

use serde_json::{Map, Value};

use crate::documents;

/// Places, and the values that are tried at each of them, as JSON; `-` takes the field away.
pub type Fields = [(&'static [&'static str], &'static [&'static str])];

/// For `fuzz_mutator!`: every other time one of the documents with up to four fields changed, else bytes.
pub fn mutate(fields: &Fields, data: &mut [u8], size: usize, max_size: usize, seed: u32) -> usize {
    let mut random = Random(u64::from(seed));
    if random.below(2) == 0
        && let Some(text) = data.get(..size).and_then(|old| with_other_fields(fields, old, &mut random))
        && let Some(place) = data.get_mut(..text.len().min(max_size))
        && place.len() == text.len()
    {
        place.copy_from_slice(text.as_bytes());
        return text.len();
    }
    libfuzzer_sys::fuzzer_mutate(data, size, max_size)
}

fn with_other_fields(fields: &Fields, old: &[u8], random: &mut Random) -> Option<String> {
    let text = std::str::from_utf8(old).ok()?;
    let mut objects = match serde_json::from_str(text) {
        Ok(object) => vec![object],
        Err(_) => documents(text),
    };
    if objects.is_empty() {
        return None;
    }
    let mut object: Value = objects.swap_remove(random.below(objects.len()));
    for _ in 0..=random.below(4) {
        let (places, values) = random.one_of(fields);
        let value = random.one_of(values);
        put(&mut object, random.one_of(places), serde_json::from_str(value).ok());
    }
    Some(object.to_string())
}

/// Puts a value at a JSON pointer, making what holds it; a place behind the end of a list appends.
fn put(root: &mut Value, pointer: &str, value: Option<Value>) {
    let Some((holder, last)) = pointer.rsplit_once('/') else { return };
    let mut place = root;
    for key in holder.split('/').skip(1) {
        place = match key.parse::<usize>() {
            Ok(index) => {
                let items = items_of(place);
                let index = items.len().min(index);
                if index == items.len() {
                    items.push(Value::Null);
                }
                &mut items[index]
            }
            Err(_) => fields_of(place).entry(unescaped(key)).or_insert(Value::Null),
        };
    }
    match (last.parse::<usize>(), value) {
        (Ok(index), Some(value)) => {
            let items = items_of(place);
            let index = items.len().min(index);
            items.splice(index..items.len().min(index + 1), [value]);
        }
        (Ok(_), None) => drop(items_of(place).pop()),
        (Err(_), Some(value)) => drop(fields_of(place).insert(unescaped(last), value)),
        (Err(_), None) => drop(fields_of(place).remove(&unescaped(last))),
    }
}

fn items_of(place: &mut Value) -> &mut Vec<Value> {
    if !place.is_array() {
        *place = Value::Array(Vec::new());
    }
    place.as_array_mut().expect("it was made one")
}

fn fields_of(place: &mut Value) -> &mut Map<String, Value> {
    if !place.is_object() {
        *place = Value::Object(Map::new());
    }
    place.as_object_mut().expect("it was made one")
}

fn unescaped(key: &str) -> String {
    key.replace("~1", "/").replace("~0", "~")
}

/// Small and repeatable: libFuzzer gives the seed.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }
}
