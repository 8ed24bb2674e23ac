//! Values that a map with tenants' entries lends. A map drops only values without loans.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A value that its owner lends. Each [`Loan`] counts until it is dropped.
#[derive(Debug)]
pub struct Lent<T>(Arc<Counted<T>>);

/// A loan of a value. The value lives as long as the loan, even if the owner drops it.
#[derive(Debug)]
pub struct Loan<T>(Arc<Counted<T>>);

#[derive(Debug)]
struct Counted<T> {
    value: T,
    loans: AtomicUsize,
}

impl<T> Lent<T> {
    /// Wraps a value, without a loan.
    pub fn new(value: T) -> Self {
        Self(Arc::new(Counted {
            value,
            loans: AtomicUsize::new(0),
        }))
    }

    /// Creates a loan.
    pub fn lend(&self) -> Loan<T> {
        Loan::of(&self.0)
    }

    /// The number of loans.
    pub fn loans(&self) -> usize {
        self.0.loans.load(Ordering::Acquire)
    }

    /// Whether a loan exists. Only a holder of a loan can create another one without the owner.
    pub fn is_lent(&self) -> bool {
        self.loans() > 0
    }

    /// Whether this value was lent with `loan`.
    pub fn has_lent(&self, loan: &Loan<T>) -> bool {
        Arc::ptr_eq(&self.0, &loan.0)
    }
}

impl<T> Loan<T> {
    fn of(value: &Arc<Counted<T>>) -> Self {
        value.loans.fetch_add(1, Ordering::Relaxed);
        Self(value.clone())
    }

    /// The number of loans of the value, including this one.
    pub fn count(&self) -> usize {
        self.0.loans.load(Ordering::Acquire)
    }

    /// Whether both are loans of the same value.
    pub fn is_of_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl<T> Clone for Loan<T> {
    fn clone(&self) -> Self {
        Self::of(&self.0)
    }
}

impl<T> Drop for Loan<T> {
    fn drop(&mut self) {
        self.0.loans.fetch_sub(1, Ordering::Release);
    }
}

impl<T> Deref for Lent<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0.value
    }
}

impl<T> Deref for Loan<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0.value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_loan_counts_until_it_is_dropped() {
        let lent = Lent::new(7);
        assert!(!lent.is_lent());
        let first = lent.lend();
        let second = first.clone();
        assert_eq!((lent.loans(), *first, *second), (2, 7, 7));
        assert!(lent.has_lent(&second) && !Lent::new(7).has_lent(&second));
        assert!(first.is_of_same(&second) && !first.is_of_same(&Lent::new(7).lend()));

        drop(first);
        assert!(lent.is_lent());
        drop(second);

        assert!(!lent.is_lent());
    }

    #[test]
    fn a_lent_value_lives_as_long_as_its_last_loan() {
        let value = Arc::new(());
        let lent = Lent::new(value.clone());
        let loan = lent.lend();

        drop(lent);
        assert_eq!(Arc::strong_count(&value), 2);
        drop(loan);

        assert_eq!(Arc::strong_count(&value), 1);
    }
}
