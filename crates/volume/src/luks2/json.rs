//! Strict JSON: no repeated name in an object, no deep nesting, no more values than any real header
//! has.
//!
//! serde_json alone would use the last of two equal names (another reader may use the first: two
//! readings of one header), and need a hundred times the input's size for tiny nested objects.

use std::cell::Cell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use crate::{Error, ErrorKind, Result, printable};

/// The default of json-c, which also limits cryptsetup.
const MAX_DEPTH: usize = 32;
/// 32 keyslots, 32 tokens, 32 digests and as many segments need some thousands.
const MAX_VALUES: usize = 1 << 16;

/// Parses the JSON area: an object, a NUL, zeros to the end.
pub(crate) fn parse_area(area: &[u8]) -> Result<Map<String, Value>> {
    let bad = |why: &str| Error::new(ErrorKind::BadHeader, format!("JSON area: {why}"));
    let end = area.iter().position(|&b| b == 0).ok_or_else(|| bad("does not end with a NUL"))?;
    let (text, rest) = area.split_at(end);
    if rest.iter().any(|&b| b != 0) {
        return Err(bad("data after the NUL"));
    }
    if text.first() != Some(&b'{') {
        return Err(bad("does not begin with an object"));
    }
    parse(text, Repeats::Refused).map_err(|e| e.within("JSON area"))
}

/// The handling of repeated names in an object.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Repeats {
    /// For headers: two readers might read different values.
    Refused,
    /// For a user's input, as json-c reads it (jose writes such objects): the last value is used.
    LastWins,
}

/// Parses text that is one object.
pub(crate) fn parse(text: &[u8], repeats: Repeats) -> Result<Map<String, Value>> {
    let bad = |why: &str| Error::new(ErrorKind::BadHeader, why);
    let values = Cell::new(0);
    let text = escaped(text);
    let mut reader = serde_json::Deserializer::from_str(&text);
    let parsed = Strict { depth: 0, values: &values, repeats }.deserialize(&mut reader);
    match parsed.and_then(|value| reader.end().map(|()| value)) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err(bad("it is no object")),
        Err(e) => Err(bad("it is not well formed").with_source(e)),
    }
}

/// Fails with the reason when json-c, and so cryptsetup, would not read this value at this depth of
/// the JSON area, or would read another one. Scalars count for the depth; a name ends at a NUL.
pub(crate) fn json_c_reads(value: &Value, depth: usize) -> std::result::Result<(), String> {
    if depth > MAX_DEPTH {
        return Err(format!("nested deeper in the JSON area than {MAX_DEPTH} levels"));
    }
    match value {
        Value::Object(members) => members.iter().try_for_each(|(name, member)| match name.contains('\0') {
            true => Err(format!("a NUL in the name {}", printable(name))),
            false => json_c_reads(member, depth + 1),
        }),
        Value::Array(values) => values.iter().try_for_each(|value| json_c_reads(value, depth + 1)),
        _ => Ok(()),
    }
}

/// Returns the text for a JSON area of `len` bytes, with its zeros.
pub(crate) fn fill_area(object: &Map<String, Value>, len: usize) -> Result<Vec<u8>> {
    // Maps with string keys can always be serialized.
    let text = serde_json::to_string(object).expect("JSON made of JSON values");
    let mut area = json_bytes(&text);
    if area.len() >= len {
        let context = format!("metadata of {} bytes does not fit its area of {len}", area.len());
        return Err(Error::new(ErrorKind::BadOption, context));
    }
    area.resize(len, 0);
    Ok(area)
}

/// The first of 256 private characters, of which the upper half stand for bytes. json-c takes any
/// bytes in its strings: in memory, each byte outside of UTF-8 is such a character, and so is each
/// byte of such a character itself. None of them is ASCII, which all of JSON's own marks are: what
/// stands in a string, also as an escape, stays in it.
const RAW: u32 = 0x10_fe00;

/// Returns the byte that a character stands for, if it stands for one.
fn raw_byte(c: char) -> Option<u8> {
    let byte = u32::from(c).checked_sub(RAW).and_then(|byte| u8::try_from(byte).ok());
    byte.filter(|byte| !byte.is_ascii())
}

/// Returns text with characters for its bytes outside of UTF-8.
fn escaped(text: &[u8]) -> String {
    let mut out = String::with_capacity(text.len());
    let raw = |byte: &u8| char::from_u32(RAW + u32::from(*byte));
    for chunk in text.utf8_chunks() {
        for c in chunk.valid().chars() {
            match raw_byte(c) {
                None => out.push(c),
                Some(_) => out.extend(c.encode_utf8(&mut [0; 4]).as_bytes().iter().filter_map(raw)),
            }
        }
        out.extend(chunk.invalid().iter().filter_map(raw));
    }
    out
}

/// Returns the bytes of JSON text that was made of a header's parts. Bytes outside of UTF-8 are as
/// they are in the header.
pub fn json_bytes(text: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    for c in text.chars() {
        match raw_byte(c) {
            Some(byte) => out.push(byte),
            None => out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    out
}

#[derive(Clone, Copy)]
struct Strict<'c> {
    depth: usize,
    values: &'c Cell<usize>,
    repeats: Repeats,
}

impl Strict<'_> {
    fn deeper<E: serde::de::Error>(self) -> std::result::Result<Self, E> {
        if self.depth == MAX_DEPTH {
            return Err(E::custom(format_args!("nested deeper than {MAX_DEPTH} levels")));
        }
        Ok(Self { depth: self.depth + 1, ..self })
    }
}

impl<'de> DeserializeSeed<'de> for Strict<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> std::result::Result<Value, D::Error> {
        self.values.set(self.values.get() + 1);
        if self.values.get() > MAX_VALUES {
            return Err(D::Error::custom(format_args!("more than {MAX_VALUES} values")));
        }
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> std::result::Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> std::result::Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_u64<E>(self, value: u64) -> std::result::Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> std::result::Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> std::result::Result<Value, E> {
        Number::from_f64(value).map(Value::Number).ok_or_else(|| E::custom("a number out of range"))
    }

    fn visit_str<E>(self, value: &str) -> std::result::Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> std::result::Result<Value, A::Error> {
        let inner = self.deeper()?;
        let mut out = Vec::new();
        while let Some(value) = seq.next_element_seed(inner)? {
            out.push(value);
        }
        Ok(Value::Array(out))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Value, A::Error> {
        let inner = self.deeper()?;
        let mut out = Map::new();
        while let Some(name) = map.next_key::<String>()? {
            if self.repeats == Repeats::Refused && out.contains_key(&name) {
                return Err(A::Error::custom(format_args!("{} appears twice", printable(&name))));
            }
            let value = map.next_value_seed(inner)?;
            out.insert(name, value);
        }
        Ok(Value::Object(out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn area(text: &str) -> Vec<u8> {
        [text.as_bytes(), &[0; 16]].concat()
    }

    #[test]
    fn plain_objects_parse() {
        let object = parse_area(&area(r#"{"a":{"b":["1",2,-3,true,null,1.5]}}"#)).unwrap();
        assert_eq!(object["a"]["b"][1], 2);
        let back = fill_area(&object, 4096).unwrap();
        assert_eq!(parse_area(&back).unwrap(), object);
    }

    #[test]
    fn text_of_other_encodings_stays_as_it_is() {
        for text in [
            &b"{\"a\":\"B\xfcro\"}"[..],
            b"{\"\xff\x80\":\"\xf0\x9f\"}",
            "{\"a\":\"\u{10fefc}ü\"}".as_bytes(),
        ] {
            let object = parse_area(&[text, &[0; 16]].concat()).unwrap();
            let back = fill_area(&object, text.len() + 16).unwrap();
            assert_eq!(back, [text, &[0; 16]].concat());
        }
    }

    /// The escape is the character that would be a quote if it stood for a byte.
    #[test]
    fn no_character_leaves_its_string() {
        let text = r#"{"a":"\udbff\ude22,\udbff\ude22b\udbff\ude22:\udbff\ude5c"}"#;
        let object = parse_area(&area(text)).unwrap();
        let back = fill_area(&object, 4096).unwrap();
        assert_eq!(parse_area(&back).unwrap(), object);
    }

    #[test]
    fn hostile_json_is_refused() {
        let deep = format!("{{\"a\":{}{}}}", "[".repeat(40), "]".repeat(40));
        let very_deep = format!("{{\"a\":{}", "[".repeat(100_000));
        let wide = format!("{{\"a\":[{}1]}}", "1,".repeat(MAX_VALUES));
        let objects = format!("{{\"a\":[{}{{}}]}}", "{\"\":0},".repeat(MAX_VALUES));
        for (text, why) in [
            ("", "no object"),
            ("[]", "an array"),
            (" {}", "leading space"),
            ("{} x", "trailing text"),
            ("{\"a\":1,\"a\":1}", "a name twice"),
            ("{\"a\":{\"b\":1,\"b\":2}}", "a name twice, inside"),
            ("{\"a\":1,\"\\u0061\":1}", "a name twice, escaped"),
            ("{\"a\":1e999}", "a number out of range"),
            ("{\"a\":\"\\ud800\"}", "half a surrogate pair"),
            ("{\"a\":01}", "a leading zero"),
            ("{\"a\":NaN}", "not a number"),
            ("{\"a\"", "cut off"),
            (&deep, "deep"),
            (&very_deep, "very deep"),
            (&wide, "wide"),
            (&objects, "many objects"),
        ] {
            assert_eq!(parse_area(&area(text)).unwrap_err().kind(), ErrorKind::BadHeader, "{why}");
        }
        assert!(parse_area(b"{}").is_err(), "no NUL");
        assert!(parse_area(b"{}\0x").is_err(), "data after the NUL");
    }
}
