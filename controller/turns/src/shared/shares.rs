//! Counts the values of each owner in a map that tenants share.

use super::Swept;
use super::lent::{Lent, Loan};

/// Counts the values for each owner. Each value holds its [`Share`].
#[derive(Debug, Default)]
pub struct Shares(Swept<String, Lent<()>>);

/// A value's share. It counts for its owner until it is dropped.
#[derive(Debug)]
pub struct Share(Loan<()>);

impl Shares {
    /// Creates a share for this owner.
    pub fn of(&mut self, owner: &str) -> Share {
        let is_dead = |_: &String, known: &mut Lent<()>| !known.is_lent();
        let new = || Lent::new(());
        let known = self.0.get_or_insert_with(owner.to_owned(), is_dead, new);
        Share(known.lend())
    }
}

impl Share {
    /// The number of shares for the same owner, including this share.
    pub fn count(&self) -> usize {
        self.0.count()
    }

    /// Whether both shares have the same owner.
    pub fn has_owner_of(&self, other: &Self) -> bool {
        self.0.is_of_same(&other.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shares_of_each_owner_are_counted_until_they_are_dropped() {
        let mut shares = Shares::default();
        let [first, second, other] = ["a", "a", "b"].map(|owner| shares.of(owner));

        assert_eq!((first.count(), other.count()), (2, 1));
        assert!(first.has_owner_of(&second) && !first.has_owner_of(&other));
        drop(second);
        assert_eq!(first.count(), 1);
        drop(first);
        assert_eq!(shares.of("a").count(), 1);
    }

    #[test]
    fn owners_without_shares_are_dropped() {
        let mut shares = Shares::default();
        for number in 0..1000 {
            drop(shares.of(&number.to_string()));
        }

        assert!(shares.0.len() < 10, "{}", shares.0.len());
    }
}
