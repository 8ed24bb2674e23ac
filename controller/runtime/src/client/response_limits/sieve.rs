//! A filter for JSON text before parsing. It removes parts that are never read, and counts the values in the rest.
//!
//! `metadata.managedFields` makes up half of most objects, and contains times that k8s-openapi cannot parse: see
//! [`Lenient`](crate::watch::Lenient).

use std::mem;

use hyper::body::Bytes;
use memchr::memchr3;

use super::Excess;

/// The maximum number of removed bytes, as a multiple of the forwarded bytes. Half of most objects is removed, as is
/// all data that exceeds an object's limit.
const REMOVED: usize = 4;

/// The maximum length of a key that the filter recognizes.
const MAX_KEY_LEN: usize = 16;

/// The last member of an object whose excess data was removed, with the preceding comma. No API server has a field with
/// this name. [`Lenient`](crate::watch::Lenient) treats this object as unreadable.
const CUT_MEMBER: &[u8] = br#","$excessRemoved":true"#;

/// The limits for a JSON text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::client) struct Limits {
    /// Whether each line is a separate text.
    pub(in crate::client) lines: bool,
    /// The maximum number of bytes to forward.
    pub(in crate::client) bytes: usize,
    /// The maximum number of arrays, objects, and their members. Each of them becomes a value in memory, which can take
    /// several hundred times more memory than the two bytes of `{}`.
    pub(in crate::client) values: usize,
    /// The maximum number of elements in top-level arrays, which are the objects of a list.
    pub(in crate::client) items: usize,
    /// The maximum number of values in one object in a list or a watch. The rest of a larger object is removed, so that
    /// the other objects can be read. The object then ends with [`CUT_MEMBER`]. It keeps the metadata fields that are
    /// neither lists nor maps, such as its name.
    pub(in crate::client) object: usize,
}

impl Limits {
    /// The limits for a single text of any size.
    pub(in crate::client) const ANY: Self = Self {
        lines: false,
        bytes: usize::MAX,
        values: usize::MAX,
        items: usize::MAX,
        object: usize::MAX,
    };
}

/// The current size of a text, in the units of [`Limits`].
#[derive(Debug, Default)]
struct Size {
    bytes: usize,
    removed: usize,
    values: usize,
    items: usize,
    object: usize,
}

/// Replaces `managedFields` in any `metadata` with `null`, removes the excess data of an object, and counts the rest.
///
/// Invalid JSON is either forwarded unchanged or truncated.
#[derive(Debug)]
pub(in crate::client) struct Sieve {
    limits: Limits,
    text: Text,
    open: Vec<Container>,
    /// The first bytes of the last key.
    key: Vec<u8>,
    /// The nesting depth within a value that is being removed.
    skipped: Option<usize>,
    /// Whether the filter is removing the rest of a container instead of a single value.
    is_rest: bool,
    /// Whether an object exceeded its limit.
    cut: bool,
    /// Whether the current object exceeded its limit.
    is_cut: bool,
    size: Size,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Text {
    Outside,
    Value,
    Key,
    /// The state after a backslash in a value or in a key.
    EscapeInValue,
    EscapeInKey,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Container {
    Array,
    Object { metadata: bool, at_key: bool },
}

impl Sieve {
    /// Creates a filter for a text with these limits.
    pub(in crate::client) fn new(limits: Limits) -> Self {
        Self {
            limits,
            text: Text::Outside,
            open: Vec::new(),
            key: Vec::new(),
            skipped: None,
            is_rest: false,
            cut: false,
            is_cut: false,
            size: Size::default(),
        }
    }

    /// Returns whether the excess data of an object was removed since the last call.
    pub(super) fn take_cut(&mut self) -> bool {
        mem::take(&mut self.cut)
    }

    /// The number of bytes of the current text that were forwarded.
    pub(super) fn passed(&self) -> usize {
        self.size.bytes
    }

    /// The part of this chunk that must be forwarded.
    ///
    /// # Errors
    ///
    /// Returns an error if the text exceeds a limit. The text must then not be read further.
    pub(in crate::client) fn pass(&mut self, piece: Bytes) -> Result<Bytes, Excess> {
        let mut passed: Option<Vec<u8>> = self.skipped.map(|_| Vec::new());
        let mut from = 0;
        let mut index = 0;
        while let Some(&byte) = piece.get(index) {
            if self.ends_cut_object(byte) {
                let passed = passed.get_or_insert_default();
                passed.extend(piece.get(from..index).unwrap_or_default());
                passed.extend(CUT_MEMBER);
                from = index;
                self.add(CUT_MEMBER.len());
                self.is_cut = false;
            }
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
            index += 1;
            if matches!(self.text, Text::Value | Text::Key) {
                // Fast path, because strings make up most of an object.
                let rest = piece.get(index..).unwrap_or_default();
                let within = memchr3(b'"', b'\\', b'\n', rest).unwrap_or(rest.len());
                if self.text == Text::Key {
                    let missing = MAX_KEY_LEN.saturating_sub(self.key.len()).min(within);
                    self.key.extend(rest.iter().take(missing));
                }
                self.add(within);
                index += within;
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

    fn check(&self) -> Result<(), Excess> {
        let Self { size, limits, .. } = self;
        let removed = limits.bytes.saturating_mul(REMOVED);
        if size.bytes > limits.bytes || size.removed > removed {
            Err(if limits.lines {
                Excess::Event(limits.bytes)
            } else {
                Excess::Length(limits.bytes)
            })
        } else if size.items > limits.items {
            Err(Excess::Items(limits.items))
        } else if size.values > limits.values {
            Err(Excess::Values(limits.values))
        } else {
            Ok(())
        }
    }

    fn read(&mut self, byte: u8) -> Result<(), Excess> {
        if byte == b'\n' && self.limits.lines {
            self.check()?;
            *self = Self {
                cut: self.cut,
                ..Self::new(self.limits)
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
                // An API server does not escape the keys that the filter recognizes.
                self.keyed(0);
                self.text = Text::Key;
            }
            (Text::Outside | Text::Value, _) => {}
        }
        self.add(1);
        Ok(())
    }

    fn add(&mut self, bytes: usize) {
        if self.skipped.is_none() {
            self.size.bytes += bytes;
        } else {
            self.size.removed += bytes;
        }
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
            self.is_cut = false;
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
            // Counts the closing bracket, which is forwarded.
            self.size.bytes += 1;
            self.skip_the_rest();
        }
    }

    /// The nesting depth of an object's members in a list or in a watch.
    fn depth_of_objects(&self) -> usize {
        if self.limits.lines { 2 } else { 3 }
    }

    /// Whether the current object exceeds its limit. If it does, the rest of the innermost container must be removed.
    ///
    /// The direct members of an object and of its metadata are kept. An API server sorts the fields of a custom
    /// resource, so that the labels precede the name.
    fn is_over(&self) -> bool {
        let depth = self.depth_of_objects();
        let is_metadata = matches!(
            self.open.last(),
            Some(Container::Object { metadata: true, .. })
        );
        let kept = depth + usize::from(is_metadata && self.open.len() == depth + 1);
        self.size.object > self.limits.object && self.open.len() > kept
    }

    fn skip_the_rest(&mut self) {
        self.skipped = Some(0);
        self.is_rest = true;
        self.cut = true;
        self.is_cut = true;
    }

    /// Whether this byte ends an object whose excess data was removed.
    fn ends_cut_object(&self, byte: u8) -> bool {
        self.is_cut
            && byte == b'}'
            && self.text == Text::Outside
            && self.skipped.is_none()
            && self.open.len() == self.depth_of_objects()
    }

    fn count(&mut self) {
        self.size.values += 1;
        self.size.object += 1;
    }

    fn closed(&mut self) {
        if let Some(depth @ 1..) = &mut self.skipped {
            *depth -= 1;
            return;
        }
        self.skipped = None;
        self.open.pop();
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
                // Counts the colon and `null`.
                self.size.bytes += 5;
            }
        }
    }
}

#[cfg(test)]
mod tests;
