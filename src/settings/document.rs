//! A settings document: a file or a drop-in.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Error, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::table::{Entry, Form};
use super::{ProviderSchema, Values};
use crate::failure::Invalid;

/// The required keys at the beginning of a file, and their values.
pub(super) const HEADER: [(&str, &str); 2] = [
    (
        "apiVersion",
        "kubelet-authenticator.cluster.x-k8s.io/v1alpha1",
    ),
    ("kind", "KubeletAuthenticatorConfiguration"),
];

/// The settings of a document.
#[derive(Debug, Default)]
pub(super) struct Content<'a> {
    pub(super) values: Values,
    /// The known keys and sections in the document, including keys with empty values.
    given: Vec<&'a str>,
    /// Whether to skip faults.
    lenient: bool,
    /// Whether a fault other than a removed setting was skipped.
    pub(super) is_invalid: bool,
}

impl<'a> Content<'a> {
    /// Parses a document. With `lenient`, unknown and removed keys, and invalid values of the right type, are skipped.
    /// Otherwise, every key must be known and have a valid value.
    pub(super) fn read<'de, D: Deserializer<'de>>(
        schema: &'a ProviderSchema,
        document: D,
        lenient: bool,
    ) -> Result<Self, D::Error> {
        let mut content = Self {
            lenient,
            ..Self::default()
        };
        document.deserialize_map(Level {
            schema,
            section: "",
            content: &mut content,
        })?;
        Ok(content)
    }

    /// The first required key that is missing, and its value.
    pub(super) fn missing_header(&self) -> Option<(&'static str, &'static str)> {
        HEADER
            .into_iter()
            .find(|(key, _)| !self.given.contains(key))
    }

    fn once<E: Error>(&mut self, key: &'a str) -> Result<(), E> {
        if self.given.contains(&key) {
            return Err(E::custom("duplicate key"));
        }
        self.given.push(key);
        Ok(())
    }
}

/// A map of the document: the whole document, or the section of a provider. A section that is null counts as empty.
struct Level<'a, 'b> {
    schema: &'a ProviderSchema,
    section: &'a str,
    content: &'b mut Content<'a>,
}

impl Level<'_, '_> {
    /// Reads the value of `key`.
    fn read<'de, A: MapAccess<'de>>(&mut self, map: &mut A, key: &str) -> Result<(), A::Error> {
        let (schema, section) = (self.schema, self.section);
        let is_known = |entry: &Entry| entry.split() == (section, key);
        if let Some(entry) = schema.entries().find(is_known) {
            self.content.once(entry.name)?;
            let lenient = self.content.lenient;
            match map.next_value_seed(Checked { entry, lenient })? {
                Ok(Some(text)) => drop(self.content.values.0.insert(entry.name, text)),
                Ok(None) => {}
                Err(Passed) => self.content.is_invalid = true,
            }
            return Ok(());
        }
        if !section.is_empty() && section != schema.provider.as_str() {
            // Skip this section, because only the plugin of the other provider has its list of keys.
            return map.next_value::<IgnoredAny>().map(drop);
        }
        let mut removed = schema.removed();
        let removed =
            removed.find(|it| it.key.split_once('.').unwrap_or(("", it.key)) == (section, key));
        if let Some(removed) = removed {
            if self.content.lenient {
                return map.next_value::<IgnoredAny>().map(drop);
            }
            return map.next_value_seed(Refused(removed.why()));
        }
        let mut header = HEADER.into_iter();
        if section.is_empty()
            && let Some((name, expected)) = header.find(|(name, _)| *name == key)
        {
            self.content.once(name)?;
            return map.next_value_seed(Constant(expected));
        }
        if section.is_empty()
            && let Some(section) = schema.sections().find(|section| *section == key)
        {
            self.content.once(section)?;
            let content = &mut *self.content;
            return map.next_value_seed(Level {
                schema,
                section,
                content,
            });
        }
        if self.content.lenient {
            self.content.is_invalid = true;
            return map.next_value::<IgnoredAny>().map(drop);
        }
        let known = schema.known(section).join(", ");
        map.next_value_seed(Refused(format!("unknown key; the keys are {known}")))
    }
}

impl<'de> DeserializeSeed<'de> for Level<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_option(self)
    }
}

impl<'de> Visitor<'de> for Level<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map of settings")
    }

    fn visit_none<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<Cow<'de, str>>()? {
            self.read(&mut map, &key)?;
        }
        Ok(())
    }
}

/// Deserializes a value that is skipped because it is invalid.
struct Passed;

/// The checked text of a value; `None` if it is empty.
struct Checked {
    entry: Entry,
    lenient: bool,
}

impl<'de> DeserializeSeed<'de> for Checked {
    type Value = Result<Option<String>, Passed>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        let text = match self.entry.form {
            Form::Text => {
                Option::<String>::deserialize(deserializer)?.filter(|text| !text.is_empty())
            }
            Form::Number => Some(u64::deserialize(deserializer)?.to_string()),
            Form::Numbers => Option::<Vec<u64>>::deserialize(deserializer)?.map(|numbers| {
                let numbers: Vec<String> = numbers.iter().map(u64::to_string).collect();
                numbers.join(",")
            }),
        };
        match text.as_deref().map(self.entry.check) {
            Some(Err(_)) if self.lenient => Ok(Err(Passed)),
            Some(Err(error)) => Err(D::Error::custom(error)),
            Some(Ok(())) | None => Ok(Ok(text)),
        }
    }
}

/// Fails at the value with this error text, so that the error contains the path of the key.
struct Refused(String);

impl<'de> DeserializeSeed<'de> for Refused {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, _: D) -> Result<(), D::Error> {
        Err(D::Error::custom(self.0))
    }
}

/// A key with only one valid value.
struct Constant(&'static str);

impl<'de> DeserializeSeed<'de> for Constant {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        if String::deserialize(deserializer)? == self.0 {
            Ok(())
        } else {
            Err(D::Error::custom(constant(self.0)))
        }
    }
}

/// The error for a key whose value is not `expected`.
pub(super) fn constant(expected: &str) -> Invalid {
    Invalid::needed(format_args!("{expected:?}"))
}
