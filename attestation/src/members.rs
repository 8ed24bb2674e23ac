//! JSON objects without duplicate names.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};

/// The members of a JSON object. Each name occurs once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Members<V>(pub BTreeMap<String, V>);

impl<'de, V: Deserialize<'de>> Deserialize<'de> for Members<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(EachOnce(PhantomData))
    }
}

struct EachOnce<V>(PhantomData<V>);

impl<'de, V: Deserialize<'de>> Visitor<'de> for EachOnce<V> {
    type Value = Members<V>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with unique names")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members<V>, A::Error> {
        let mut members = BTreeMap::new();
        while let Some((name, value)) = map.next_entry()? {
            if members.insert(name, value).is_some() {
                return Err(A::Error::custom("duplicate name"));
            }
        }
        Ok(Members(members))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duplicate_members_are_refused() {
        let read = serde_json::from_str::<Members<u8>>;

        let expected = [("a".to_owned(), 1), ("b".to_owned(), 1)].into();
        assert_eq!(read(r#"{"a":1,"b":1}"#).unwrap(), Members(expected));
        for (json, expected) in [
            (r#"{"a":1,"a":1}"#, "duplicate name"),
            ("[1]", "expected an object with unique names"),
        ] {
            let error = read(json).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
