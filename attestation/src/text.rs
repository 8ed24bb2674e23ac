//! Names that are checked text.

/// `as_str` and `Display` of types that hold their text in the first field.
macro_rules! as_text {
    ($($name:ty),+) => { $(
        impl $name {
            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(&self.0)
            }
        }
    )+ };
}

pub(crate) use as_text;
