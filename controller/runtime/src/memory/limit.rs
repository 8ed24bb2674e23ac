//! Limits on resources that namespaces share.

use super::container;

/// The total number of bytes for all namespaces.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limit(pub(super) usize);

impl Limit {
    /// Half of the bytes, the limit for each of several namespaces.
    pub(super) const fn half(self) -> usize {
        let Self(bytes) = self;
        bytes / 2
    }

    /// The number of bytes that a namespace can still take. The namespace already uses `own` of the `all` used bytes,
    /// and `namespaces` is the number of namespaces.
    ///
    /// A single namespace can take three quarters. If there are two or more namespaces, each of them can take at most
    /// half. The last quarter is divided equally among at least three namespaces. Used memory is not taken away
    /// immediately, and a new namespace needs a part that no other namespace can take. If there is no namespace, the
    /// operator can take the rest.
    pub(super) fn room(self, (own, all): (usize, usize), namespaces: usize) -> usize {
        let Self(bytes) = self;
        let left = bytes.saturating_sub(all);
        let quarter = bytes / 4;
        let most = match namespaces {
            0 => return left,
            1 => bytes,
            _ => self.half(),
        };
        let before_last = left.saturating_sub(quarter);
        let of_last = (quarter / namespaces.max(3)).saturating_sub(own);
        let equal = left.min(of_last);
        equal.max(before_last.min(most.saturating_sub(own)))
    }
}

/// A limit on objects that the controller keeps as long as they exist, in any unit.
///
/// A single namespace can use at most half of the limit, so that there is space for objects in other namespaces. The
/// last quarter is divided equally among the namespaces.
#[derive(Debug, Clone, Copy)]
pub struct KeptLimit(Limit);

impl KeptLimit {
    /// Creates a limit with this number of units for all namespaces together.
    pub const fn new(units: usize) -> Self {
        Self(Limit(units))
    }

    /// The number of objects with this size that fit into this fraction of the container's memory.
    pub fn of_memory(part: usize, unit: usize) -> Self {
        Self::new(container::limit() / part / unit)
    }

    /// The maximum number of units for one namespace.
    pub(crate) const fn of_namespace(self) -> usize {
        let Self(limit) = self;
        limit.half()
    }

    /// The number of units that a namespace can still take. The namespace already uses `own` of the `all` used units,
    /// and `namespaces` is the number of namespaces.
    pub fn room(self, used: (usize, usize), namespaces: usize) -> usize {
        self.0.room(used, namespaces.max(3))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_of_one_namespace_use_at_most_half_of_the_limit() {
        let limit = KeptLimit::new(64);
        assert_eq!(limit.room((0, 0), 1), 32);
        assert_eq!(limit.of_namespace(), 32);
        assert_eq!(limit.room((32, 32), 1), 0);
        assert_eq!(limit.room((0, 32), 2), 16);
        assert_eq!(limit.room((0, 48), 4), 4);
        assert_eq!(limit.room((4, 52), 4), 0);
        assert_eq!(limit.room((0, 64), 4), 0);
    }
}
