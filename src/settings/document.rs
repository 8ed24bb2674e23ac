//! A document of settings: a file, a drop-in, or the cluster's extension.

use std::borrow::Cow;
use std::convert::Infallible;
use std::fmt;

use serde::de::{DeserializeSeed, Error, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::error::ValueError;
use super::table::{Entry, Form};
use super::{ProviderSchema, Values};

const API_VERSION: (&str, &str) = (
    "apiVersion",
    "kubelet-authenticator.cluster.x-k8s.io/v1alpha1",
);
const KIND: (&str, &str) = ("kind", "KubeletAuthenticatorConfiguration");

#[derive(Debug, Default)]
pub(super) struct Content<'a> {
    pub(super) values: Values,
    /// The known keys and sections in the document, even those with empty values.
    given: Vec<&'a str>,
}

impl<'a> Content<'a> {
    /// The required key that is missing, if any.
    pub(super) fn missing_header(&self) -> Option<(&'static str, ValueError)> {
        [API_VERSION, KIND]
            .into_iter()
            .find(|(key, _)| !self.given.contains(key))
            .map(|(key, expected)| (key, ValueError::Constant { expected }))
    }

    fn once<E: Error>(&mut self, key: &'a str) -> Result<(), E> {
        if self.given.contains(&key) {
            return Err(E::custom("a key is there twice"));
        }
        self.given.push(key);
        Ok(())
    }

    /// Reads the value of `key`.
    fn read_value<'de, A: MapAccess<'de>>(
        &mut self,
        map: &mut A,
        schema: &ProviderSchema,
        section: &str,
        key: &str,
    ) -> Result<(), A::Error> {
        let Some(entry) = schema
            .entries()
            .find(|entry| entry.key.split() == (section, key))
        else {
            // Only a provider's own plugin knows the keys of its section.
            return if section.is_empty() || section == schema.provider.as_str() {
                map.next_value_seed(Unknown(schema.known(section)))
                    .map(|never| match never {})
            } else {
                map.next_value::<IgnoredAny>().map(drop)
            };
        };
        self.once(entry.key.name)?;
        if let Some(text) = map.next_value_seed(Checked(entry))? {
            self.values.0.insert(entry.key.name, text);
        }
        Ok(())
    }
}

/// Parses a document strictly: every key is known and has a value of its type.
pub(super) struct Reader<'a>(pub(super) &'a ProviderSchema);

impl<'de, 'a> DeserializeSeed<'de> for Reader<'a> {
    type Value = Content<'a>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Content<'a>, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de, 'a> Visitor<'de> for Reader<'a> {
    type Value = Content<'a>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map of settings")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Content<'a>, A::Error> {
        let mut content = Content::default();
        while let Some(key) = map.next_key::<Cow<'de, str>>()? {
            let constant = [API_VERSION, KIND]
                .into_iter()
                .find(|(name, _)| *name == key);
            if let Some((name, expected)) = constant {
                content.once(name)?;
                map.next_value_seed(Constant(expected))?;
            } else if let Some(name) = self.0.sections().find(|section| *section == key) {
                content.once(name)?;
                map.next_value_seed(Section {
                    schema: self.0,
                    name,
                    content: &mut content,
                })?;
            } else {
                content.read_value(&mut map, self.0, "", &key)?;
            }
        }
        Ok(content)
    }
}

/// The section of a provider. A null value counts as an empty section.
struct Section<'a, 'b> {
    schema: &'a ProviderSchema,
    name: &'a str,
    content: &'b mut Content<'a>,
}

impl<'de> DeserializeSeed<'de> for Section<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_option(self)
    }
}

impl<'de> Visitor<'de> for Section<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map of settings")
    }

    fn visit_none<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<Cow<'de, str>>()? {
            self.content
                .read_value(&mut map, self.schema, self.name, &key)?;
        }
        Ok(())
    }
}

/// The checked text of a value, `None` if it is empty.
struct Checked(Entry);

impl<'de> DeserializeSeed<'de> for Checked {
    type Value = Option<String>;

    fn deserialize<D: Deserializer<'de>>(
        self,
        deserializer: D,
    ) -> Result<Option<String>, D::Error> {
        let text = match self.0.form {
            Form::Text => {
                Option::<String>::deserialize(deserializer)?.filter(|text| !text.is_empty())
            }
            Form::Number => Some(u64::deserialize(deserializer)?.to_string()),
            Form::Numbers => Option::<Vec<u64>>::deserialize(deserializer)?.map(|numbers| {
                let numbers: Vec<String> = numbers.iter().map(u64::to_string).collect();
                numbers.join(",")
            }),
        };
        text.map(|text| match (self.0.check)(&text) {
            Ok(()) => Ok(text),
            Err(error) => Err(D::Error::custom(error)),
        })
        .transpose()
    }
}

/// Fails at the value, so that the error has the path of the key.
struct Unknown(Vec<String>);

impl<'de> DeserializeSeed<'de> for Unknown {
    type Value = Infallible;

    fn deserialize<D: Deserializer<'de>>(self, _: D) -> Result<Infallible, D::Error> {
        let known = self.0.join(", ");
        Err(D::Error::custom(format_args!(
            "there is no such key; the keys are {known}"
        )))
    }
}

/// A key with only one valid text.
struct Constant(&'static str);

impl<'de> DeserializeSeed<'de> for Constant {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        let expected = self.0;
        if String::deserialize(deserializer)? == expected {
            Ok(())
        } else {
            Err(D::Error::custom(ValueError::Constant { expected }))
        }
    }
}
