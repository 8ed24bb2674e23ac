//! Secret values.

use zeroize::{Zeroize, Zeroizing};

/// A key, token or password.
///
/// # Guarantees
///
/// `Debug` and all other traits hide the content. The value cannot be cloned, and its memory is zeroed on drop. Only
/// [`Secret::expose`] gives access.
#[derive(derive_more::Debug)]
#[debug("Secret(..)")]
pub struct Secret<T: Zeroize>(Zeroizing<T>);

impl<T: Zeroize> Secret<T> {
    /// Wraps `value`.
    pub fn new(value: T) -> Self {
        Self(Zeroizing::new(value))
    }

    /// Returns the content. The caller must not store it.
    pub fn expose(&self) -> &T {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    struct Watched<'a>(&'a Cell<bool>);

    impl Zeroize for Watched<'_> {
        fn zeroize(&mut self) {
            self.0.set(true);
        }
    }

    #[test]
    fn the_memory_is_zeroed_on_drop() {
        let is_zeroed = Cell::new(false);
        let secret = Secret::new(Watched(&is_zeroed));
        assert!(!is_zeroed.get());

        drop(secret);

        assert!(is_zeroed.get());
    }

    #[test]
    fn debug_output_does_not_contain_the_content() {
        let secret = Secret::new("abcdef.0123456789abcdef".to_owned());

        assert_eq!(format!("{secret:?}"), "Secret(..)");
        assert_eq!(secret.expose(), "abcdef.0123456789abcdef");
    }
}
