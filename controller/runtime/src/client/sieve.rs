//! JSON on its way to a parser: what nobody reads is taken out, and what a parser would make of the
//! rest is counted.
//!
//! `metadata.managedFields` is half of most objects, and holds times that k8s-openapi cannot read:
//! see [`Lenient`](crate::watch::Lenient).

use std::mem;

use hyper::body::Bytes;

/// Longer keys are none of those that matter here.
const MAX_KEY_LEN: usize = 16;

/// What a text may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Limits {
    /// Bytes that are passed on.
    pub(super) bytes: usize,
    /// Arrays, objects, and members of either: what becomes values in memory, each of which may
    /// take some hundred times the two bytes of `{}`.
    pub(super) values: usize,
    /// Elements of arrays at the top, which are the objects of a list.
    pub(super) items: usize,
    /// Values of one object of a list or a watch. What an object has beyond is taken out, so that it does
    /// not keep others from being read.
    pub(super) object: usize,
}

impl Limits {
    const NONE: Self = Self {
        bytes: 0,
        values: 0,
        items: 0,
        object: 0,
    };
}

/// A text has more than it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TooMuch {
    Bytes,
    Values,
    Items,
}

/// Replaces `managedFields` of any `metadata` by `null`, takes out what an object has beyond its limit, and
/// counts the rest.
///
/// Invalid JSON passes as it is, or is cut.
#[derive(Debug)]
pub(super) struct Sieve {
    limits: Limits,
    /// Whether each line is a text of its own.
    lines: bool,
    text: Text,
    open: Vec<Container>,
    /// The last key, as far as it matters.
    key: Vec<u8>,
    /// How deep we are in a value that is taken out.
    skipped: Option<usize>,
    /// Whether that is the rest of a container, and not one value.
    is_rest: bool,
    /// Whether an object had more than its limit.
    cut: bool,
    /// What the text has so far.
    size: Limits,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Text {
    Outside,
    Value,
    Key,
    /// After a backslash in a value, or in a key.
    EscapeInValue,
    EscapeInKey,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Container {
    Array,
    Object { metadata: bool, at_key: bool },
}

impl Sieve {
    /// For one text with these limits, or for `lines` each of which has them.
    pub(super) fn new(limits: Limits, lines: bool) -> Self {
        Self {
            limits,
            lines,
            text: Text::Outside,
            open: Vec::new(),
            key: Vec::new(),
            skipped: None,
            is_rest: false,
            cut: false,
            size: Limits::NONE,
        }
    }

    /// Whether an object has lost what it had beyond its limit, since this was asked last.
    pub(super) fn take_cut(&mut self) -> bool {
        mem::take(&mut self.cut)
    }

    /// How many bytes of the present text were passed on.
    pub(super) fn passed(&self) -> usize {
        self.size.bytes
    }

    /// The rest of this piece.
    ///
    /// # Errors
    ///
    /// The text has more than it may; it must not be read any further.
    pub(super) fn pass(&mut self, piece: Bytes) -> Result<Bytes, TooMuch> {
        let mut passed: Option<Vec<u8>> = self.skipped.map(|_| Vec::new());
        let mut from = 0;
        for (index, &byte) in piece.iter().enumerate() {
            let was_skipped = self.skipped.is_some();
            self.read(byte)?;
            match (was_skipped, self.skipped.is_some()) {
                (false, true) => {
                    let passed = passed.get_or_insert_default();
                    let before = if byte == b',' { index } else { index + 1 };
                    passed.extend(piece.get(from..before).unwrap_or_default());
                    if !self.is_rest {
                        passed.extend(b"null");
                    }
                }
                (true, false) => from = index,
                (true, true) | (false, false) => {}
            }
        }
        self.check()?;
        let Some(mut passed) = passed else {
            return Ok(piece);
        };
        if self.skipped.is_none() {
            passed.extend(piece.get(from..).unwrap_or_default());
        }
        Ok(passed.into())
    }

    fn check(&self) -> Result<(), TooMuch> {
        let Self { size, limits, .. } = self;
        if size.bytes > limits.bytes {
            Err(TooMuch::Bytes)
        } else if size.items > limits.items {
            Err(TooMuch::Items)
        } else if size.values > limits.values {
            Err(TooMuch::Values)
        } else {
            Ok(())
        }
    }

    fn read(&mut self, byte: u8) -> Result<(), TooMuch> {
        if byte == b'\n' && self.lines {
            self.check()?;
            *self = Self {
                cut: self.cut,
                ..Self::new(self.limits, true)
            };
            return Ok(());
        }
        match (self.text, byte) {
            (Text::Outside, b'"') => self.text = self.quoted(),
            (Text::Outside, b'{' | b'[') => self.opened(byte),
            (Text::Outside, b'}' | b']') => self.closed(),
            (Text::Outside, b',') => self.separated(),
            (Text::Outside, b':') => self.valued(),
            (Text::Value | Text::Key, b'"') => self.text = Text::Outside,
            (Text::Value, b'\\') => self.text = Text::EscapeInValue,
            (Text::Key, b'\\') => self.text = Text::EscapeInKey,
            (Text::Key, _) => self.keyed(byte),
            (Text::EscapeInValue, _) => self.text = Text::Value,
            (Text::EscapeInKey, _) => {
                // No API server escapes the keys that matter here.
                self.keyed(0);
                self.text = Text::Key;
            }
            (Text::Outside | Text::Value, _) => {}
        }
        self.size.bytes += usize::from(self.skipped.is_none());
        Ok(())
    }

    fn quoted(&mut self) -> Text {
        let at_key = matches!(
            self.open.last(),
            Some(Container::Object { at_key: true, .. })
        );
        if at_key && self.skipped.is_none() {
            self.key.clear();
            Text::Key
        } else {
            Text::Value
        }
    }

    fn keyed(&mut self, byte: u8) {
        if self.key.len() < MAX_KEY_LEN {
            self.key.push(byte);
        }
    }

    fn opened(&mut self, byte: u8) {
        if let Some(depth) = &mut self.skipped {
            *depth += 1;
            return;
        }
        self.count();
        if self.open.len() == 1 && byte == b'[' {
            self.size.items += 1;
        }
        if self.open.len() == self.depth_of_objects() - 1 {
            self.size.object = 0;
        }
        let in_object = matches!(self.open.last(), Some(Container::Object { .. }));
        self.open.push(if byte == b'{' {
            Container::Object {
                metadata: in_object && self.key == b"metadata",
                at_key: true,
            }
        } else {
            Container::Array
        });
        if self.is_over() {
            // The bracket, which is passed on.
            self.size.bytes += 1;
            self.skip_the_rest();
        }
    }

    /// The containers around the members of an object of a list or of a watch.
    fn depth_of_objects(&self) -> usize {
        if self.lines { 2 } else { 3 }
    }

    /// Whether the object that is read has as much as it may.
    fn is_over(&self) -> bool {
        self.size.object > self.limits.object && self.open.len() > self.depth_of_objects()
    }

    fn skip_the_rest(&mut self) {
        self.skipped = Some(0);
        self.is_rest = true;
        self.cut = true;
    }

    fn count(&mut self) {
        self.size.values += 1;
        self.size.object += 1;
    }

    fn closed(&mut self) {
        match &mut self.skipped {
            Some(0) => {
                self.skipped = None;
                self.open.pop();
            }
            Some(depth) => *depth -= 1,
            None => {
                self.open.pop();
            }
        }
    }

    fn separated(&mut self) {
        match self.skipped {
            Some(0) if !self.is_rest => self.skipped = None,
            Some(_) => return,
            None => {}
        }
        if self.is_over() {
            self.skip_the_rest();
            return;
        }
        self.count();
        let at_top = self.open.len() == 2;
        match self.open.last_mut() {
            Some(Container::Object { at_key, .. }) => *at_key = true,
            Some(Container::Array) if at_top => self.size.items += 1,
            Some(Container::Array) | None => {}
        }
    }

    fn valued(&mut self) {
        if self.skipped.is_some() {
            return;
        }
        if let Some(Container::Object { metadata, at_key }) = self.open.last_mut() {
            *at_key = false;
            if *metadata && self.key == b"managedFields" {
                self.skipped = Some(0);
                self.is_rest = false;
                // The colon, and `null`.
                self.size.bytes += 5;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const ANY: Limits = Limits {
        bytes: usize::MAX,
        values: usize::MAX,
        items: usize::MAX,
        object: usize::MAX,
    };

    /// Passes the text in pieces of this length.
    fn sieved(text: &str, piece: usize) -> String {
        let mut sieve = Sieve::new(ANY, false);
        let mut passed = Vec::new();
        for piece in text.as_bytes().chunks(piece) {
            passed.extend(sieve.pass(Bytes::copy_from_slice(piece)).unwrap());
        }
        assert_eq!(sieve.passed(), passed.len());
        String::from_utf8(passed).unwrap()
    }

    fn pass(text: &str, limits: Limits, lines: bool) -> Result<(), TooMuch> {
        let mut sieve = Sieve::new(limits, lines);
        sieve.pass(text.to_owned().into()).map(drop)
    }

    #[test]
    fn managed_fields_are_taken_out_however_the_text_is_cut() {
        let fields = json!([{"time": "9999-12-31T23:59:59Z", "a": [{"b\"]},": "c,\\"}, 1]}, null]);
        let object = |fields: Value| {
            json!({
                "metadata": {"name": "a", "managedFields": fields, "uid": "b"},
                "spec": {"metadata": {"managedFields": fields}, "managedFields": ["kept"]},
            })
        };
        let list =
            |fields: &Value| json!({"items": [object(fields.clone()), object(fields.clone())]});
        let text = list(&fields).to_string();

        for piece in [1, 2, 3, 7, 64, text.len()] {
            let passed: Value = serde_json::from_str(&sieved(&text, piece)).unwrap();
            assert_eq!(passed, list(&Value::Null), "in pieces of {piece}");
        }
        let pretty = serde_json::to_string_pretty(&list(&fields)).unwrap();
        let passed: Value = serde_json::from_str(&sieved(&pretty, 5)).unwrap();
        assert_eq!(passed, list(&Value::Null));
    }

    #[test]
    fn what_is_no_key_of_metadata_stays() {
        for text in [
            r#"{"metadata":["managedFields",{"managedFields":1}]}"#,
            r#"{"spec":{"managedFields":{"metadata":1}},"managedFields":2}"#,
            r#"{"metadata":{"managedFieldsOfOurs":1,"annotations":{"managedFields":"x"}}}"#,
            r#"{"metadata":{"annotations":{"a":"\"managedFields\":["}}}"#,
            "not JSON at all: \"managedFields",
            "",
        ] {
            assert_eq!(sieved(text, 4), text);
            assert_eq!(sieved(text, 1000), text);
        }
    }

    #[test]
    fn values_and_items_are_counted_and_those_taken_out_are_not() {
        let text = r#"{"metadata":{"managedFields":[{},{}]},"items":[{},{"a":[1,2]},5]}"#;
        let exactly = Limits {
            values: 10,
            items: 3,
            ..ANY
        };

        assert_eq!(pass(text, exactly, false), Ok(()));
        let fewer = Limits {
            values: 9,
            ..exactly
        };
        assert_eq!(pass(text, fewer, false), Err(TooMuch::Values));
        let fewer = Limits {
            items: 2,
            ..exactly
        };
        assert_eq!(pass(text, fewer, false), Err(TooMuch::Items));
        let three = [text, text, text].join("\n");
        assert_eq!(pass(&three, exactly, true), Ok(()));
        assert_eq!(pass(&three, exactly, false), Err(TooMuch::Items));
    }

    #[test]
    fn an_object_that_has_too_much_loses_the_rest_and_the_others_nothing() {
        // In the order of an API server, which has the name first.
        let object = |name: &str, members: &str| {
            format!(r#"{{"metadata":{{"name":"{name}","x":{{{members}}}}},"spec":{{"c":[1]}}}}"#)
        };
        let members: Vec<String> = (0..100)
            .map(|number| format!(r#""{number}":[{{}}]"#))
            .collect();
        let large = object("large", &members.join(","));
        let small = object("small", r#""a":"b""#);
        let list = format!(r#"{{"items":[{small},{large},{small}]}}"#);
        let event = format!(r#"{{"type":"ADDED","object":{large}}}"#) + "\n";
        let small: Value = serde_json::from_str(&small).unwrap();
        let limits = Limits { object: 20, ..ANY };

        for (text, lines) in [(list, false), (event, true)] {
            for piece in [1, 3, 10, text.len()] {
                let mut sieve = Sieve::new(limits, lines);
                let mut passed = Vec::new();
                for piece in text.as_bytes().chunks(piece) {
                    passed.extend(sieve.pass(Bytes::copy_from_slice(piece)).unwrap());
                }
                assert!(sieve.take_cut());
                assert!(!sieve.take_cut());
                let passed: Value = serde_json::from_slice(&passed).unwrap();
                let cut = if lines {
                    assert_eq!(passed["type"], "ADDED");
                    &passed["object"]
                } else {
                    assert_eq!(passed["items"][0], small);
                    assert_eq!(passed["items"][2], small);
                    &passed["items"][1]
                };
                assert_eq!(cut["metadata"]["name"], "large");
                assert!(cut["metadata"]["x"].as_object().unwrap().len() < 20);
                assert_eq!(cut["spec"], json!({}));
            }
        }
    }

    #[test]
    fn a_line_in_the_middle_of_a_piece_is_checked_too() {
        let limits = Limits { bytes: 4, ..ANY };

        assert_eq!(pass("1234\n1234\n1234", limits, true), Ok(()));
        assert_eq!(pass("1\n12345\n1", limits, true), Err(TooMuch::Bytes));
    }

    #[test]
    fn what_is_nested_as_deep_as_somebody_likes_passes() {
        let deep = "[".repeat(5000) + &"]".repeat(5000);
        for text in [
            format!(r#"{{"spec":{deep}}}"#),
            format!(r#"{{"metadata":{{"managedFields":{deep}}}}}"#),
        ] {
            let text = text.as_str();
            assert_eq!(pass(text, ANY, false), Ok(()));
            assert!(
                serde_json::from_str::<&serde_json::value::RawValue>(&sieved(text, 100)).is_ok()
            );
        }
    }
}
