//! The types that objects are decoded as.

use std::fmt::Debug;

use serde::de::DeserializeOwned;

/// A type that objects are decoded as: single objects, and each object in a list or a watch.
///
/// Only the macro `read_alone` implements this trait. Tests put hostile values into each of these types.
pub trait ReadAlone: Clone + Debug + DeserializeOwned + Send + 'static {}

/// Implements [`ReadAlone`] for types. Each type has a row in the table of hostile values.
macro_rules! read_alone {
    ($($name:literal => $fields:ty),* $(,)?) => {
        $(impl $crate::watch::ReadAlone for $fields {})*

        /// Calls `table` with each type.
        #[cfg(test)]
        pub(crate) fn each_read_alone(table: &mut impl $crate::watch::KindTable) {
            $(table.row::<$fields>($name);)*
        }
    };
}

pub(crate) use read_alone;

/// The rows of the table of hostile values.
#[cfg(test)]
pub(crate) trait KindTable {
    /// Adds the row for a type that objects are decoded as.
    fn row<K: ReadAlone>(&mut self, name: &'static str);
}
