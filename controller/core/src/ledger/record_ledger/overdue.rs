//! The order in which sweeps read the Nodes whose certificates are overdue for renewal.

use std::collections::BTreeSet;
use std::ops::Bound::{Excluded, Included, Unbounded};

use kubelet_attestation::names::NodeName;

/// The maximum number of Nodes that a sweep reads.
const MAX_READ: usize = 100;

/// The Nodes that previous sweeps read.
///
/// Most overdue Nodes belong to machines that are switched off. If one sweep cannot read all of them, reading the same
/// Nodes in each sweep would hide all other Nodes.
#[derive(Debug, Default)]
pub(super) struct OverdueNodes {
    /// The Nodes that were Ready. At most [`MAX_READ`] Nodes.
    ready: BTreeSet<NodeName>,
    /// The Node at which the last sweep stopped, among the Nodes that are not in `ready`.
    last: Option<NodeName>,
}

impl OverdueNodes {
    /// Returns the Nodes that the next sweep reads: first the Nodes that were Ready, then the other Nodes in rotation.
    pub(super) fn choose(&mut self, overdue: &BTreeSet<&NodeName>) -> Vec<NodeName> {
        self.ready.retain(|name| overdue.contains(name));
        let others = rotated(overdue, self.last.as_ref());
        let others = others.filter(|name| !self.ready.contains(*name));
        let room = MAX_READ.saturating_sub(self.ready.len());
        let others: Vec<NodeName> = others.take(room).cloned().collect();
        let last = others.last().cloned();
        let next = self.ready.iter().cloned().chain(others).collect();
        self.last = last.or_else(|| self.last.take());
        next
    }

    /// Records which Nodes are Ready, and returns the number of Ready Nodes.
    pub(super) fn note(&mut self, read: Vec<(NodeName, bool)>) -> usize {
        let ready = read.into_iter().filter(|(_, is_ready)| *is_ready);
        self.ready = ready.map(|(name, _)| name).collect();
        self.ready.len()
    }
}

/// Returns all names: first the names after `last`, then the others. The cost of returning the first names does not
/// increase with the number of all names.
fn rotated<'a, K: Ord>(all: &'a BTreeSet<&'a K>, last: Option<&K>) -> impl Iterator<Item = &'a K> {
    let (later, earlier) = match last {
        Some(last) => (Excluded(last), Some(Included(last))),
        None => (Unbounded, None),
    };
    let later = all.range::<K, _>((later, Unbounded));
    let earlier = earlier.map(|end| all.range::<K, _>((Unbounded, end)));
    later.chain(earlier.into_iter().flatten()).copied()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::cmp::Ordering;

    use super::*;

    thread_local! {
        static COMPARISONS: Cell<usize> = const { Cell::new(0) };
    }

    /// A name that counts its comparisons.
    #[derive(Debug, PartialEq, Eq)]
    struct Counted(usize);

    impl Ord for Counted {
        fn cmp(&self, other: &Self) -> Ordering {
            COMPARISONS.set(COMPARISONS.get() + 1);
            self.0.cmp(&other.0)
        }
    }

    impl PartialOrd for Counted {
        fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
            Some(self.cmp(other))
        }
    }

    #[test]
    fn the_next_overdue_nodes_are_found_without_visiting_all() {
        let all: Vec<Counted> = (0..50_000).map(Counted).collect();
        let all: BTreeSet<&Counted> = all.iter().collect();
        let next = |last: Option<usize>| {
            let last = last.map(Counted);
            COMPARISONS.set(0);
            let next = rotated(&all, last.as_ref()).take(3);
            let next: Vec<usize> = next.map(|name| name.0).collect();
            assert!(COMPARISONS.get() < 500, "{}", COMPARISONS.get());
            next
        };

        assert_eq!(next(None), [0, 1, 2]);
        assert_eq!(next(Some(6)), [7, 8, 9]);
        assert_eq!(next(Some(49_998)), [49_999, 0, 1]);
        assert_eq!(rotated(&all, Some(&Counted(7))).count(), all.len());
    }

    #[test]
    fn machines_that_are_off_do_not_hide_overdue_ready_nodes() {
        let name = |number: usize| NodeName::parse(&format!("n{number:03}")).unwrap();
        let all: Vec<NodeName> = (0..250).map(name).collect();
        let mut overdue: BTreeSet<&NodeName> = all.iter().collect();
        let on = BTreeSet::from([name(7), name(240), name(249)]);
        let mut nodes = OverdueNodes::default();
        let mut sweep = |overdue: &BTreeSet<&NodeName>| {
            let next = nodes.choose(overdue);
            assert!(next.len() <= MAX_READ, "{}", next.len());
            let read = next.into_iter().map(|name| {
                let is_on = on.contains(&name);
                (name, is_on)
            });
            nodes.note(read.collect())
        };

        let counts = [(); 6].map(|()| sweep(&overdue));
        let renewed = name(240);
        overdue.remove(&renewed);

        assert_eq!(counts, [1, 1, 3, 3, 3, 3]);
        assert_eq!(sweep(&overdue), 2);
    }

    #[test]
    fn overdue_nodes_that_are_off_take_turns_in_one_place() {
        let name = |number: usize| NodeName::parse(&format!("n{number:03}")).unwrap();
        let all: Vec<NodeName> = (0..MAX_READ + 2).map(name).collect();
        let overdue: BTreeSet<&NodeName> = all.iter().collect();
        // All Nodes before this Node are Ready, so each sweep reads only one of the other Nodes.
        let first_off = name(MAX_READ - 1);
        let mut nodes = OverdueNodes::default();
        let mut sweep = || {
            let next = nodes.choose(&overdue);
            let off = next.iter().filter(|name| **name >= first_off);
            let off: Vec<NodeName> = off.cloned().collect();
            let read = next.into_iter().map(|name| {
                let is_ready = name < first_off;
                (name, is_ready)
            });
            assert_eq!(nodes.note(read.collect()), MAX_READ - 1);
            off
        };

        let turns = [(); 4].map(|()| sweep());

        let expected = [MAX_READ - 1, MAX_READ, MAX_READ + 1, MAX_READ - 1];
        assert_eq!(turns, expected.map(|number| vec![name(number)]));
    }

    #[test]
    fn an_overdue_node_that_cannot_be_read_loses_its_precedence() {
        let name = |number: usize| NodeName::parse(&format!("n{number:03}")).unwrap();
        let all: Vec<NodeName> = (0..=MAX_READ).map(name).collect();
        let overdue: BTreeSet<&NodeName> = all.iter().collect();
        let mut nodes = OverdueNodes::default();
        let first = nodes.choose(&overdue);
        assert!(!first.contains(&name(MAX_READ)));
        assert_eq!(
            nodes.note(first.into_iter().map(|name| (name, true)).collect()),
            MAX_READ
        );
        let second = nodes.choose(&overdue);
        assert!(!second.contains(&name(MAX_READ)), "there is no room");

        // All Nodes except the first can be read.
        let readable = second.into_iter().filter(|read| *read != name(0));
        let count = nodes.note(readable.map(|name| (name, true)).collect());

        assert_eq!(count, MAX_READ - 1);
        assert!(nodes.choose(&overdue).contains(&name(MAX_READ)));
    }
}
