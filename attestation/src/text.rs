//! Names that are checked text.

/// `as_str` of types that hold their text in the first field.
macro_rules! as_text {
    ($($name:ty),+) => { $(
        impl $name {
            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }
    )+ };
}

/// Deserialization of names with a `parse`, which is the only way to make one.
macro_rules! parsed_from_text {
    ($($name:ty),+) => { $(
        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                Self::parse(&text).map_err(serde::de::Error::custom)
            }
        }
    )+ };
}

pub(crate) use {as_text, parsed_from_text};
