use super::*;
use crate::shared::testing::most_visited;

impl Share {
    /// A share that does not have a common limit.
    pub(crate) fn alone(own: usize) -> Self {
        Self::of(common(0, 0), "", own)
    }

    /// A share of this namespace without own bytes, in shared memory of this size.
    pub(crate) fn in_common(namespace: &str, bytes: usize) -> Self {
        Self::of(common(0, bytes), namespace, 0)
    }

    /// A share of another namespace in the same shared memory.
    pub(crate) fn beside(&self, namespace: &str) -> Self {
        Self::of(self.member.common, namespace, 0)
    }
}

fn common(own: usize, common: usize) -> &'static Common {
    Box::leak(Box::new(Common::new(own, common)))
}

/// A limit that allows a single namespace to hold this number of bytes.
fn of_one(bytes: usize) -> usize {
    bytes.div_ceil(3) * 4
}

#[test]
fn the_operators_memory_is_separate_from_namespace_memory() {
    let common = common(of_one(STEP), of_one(4 * STEP));
    let operator = Share::of(common, "", 8 * STEP);
    let tenant = Share::of(common, "tenant-a", STEP);
    assert!(tenant.holding().resize(5 * STEP));
    assert!(operator.holding().resize(12 * STEP));
}

fn shares(own: usize, all: usize) -> [Share; 2] {
    let common = common(of_one(2 * own * STEP), of_one(all * STEP));
    [(); 2].map(|()| Share::of(common, "tenant-a", own * STEP))
}

#[test]
fn a_namespace_gets_half_of_the_memory_while_another_has_a_share() {
    let common = common(8 * STEP, 8 * STEP);
    let tenant_a: Vec<_> = (0..5)
        .map(|_| Share::of(common, "tenant-a", STEP))
        .collect();
    let take = |share: &Share, steps: usize| {
        let mut holding = share.holding();
        let has_room = holding.resize(steps * STEP);
        has_room.then_some(holding)
    };
    let (first, second) = (&tenant_a[0], &tenant_a[1]);
    assert!(take(first, 7).is_some(), "it is alone");
    assert!(take(first, 8).is_none());

    let tenant_b = Share::of(common, "tenant-b", STEP);
    assert!(take(first, 6).is_none(), "half and its own are 5");
    let half = take(first, 5);
    assert!(half.is_some());
    assert!(take(second, 2).is_none());
    let own = take(second, 1);
    assert!(own.is_some(), "its own share is left");
    assert!(take(&tenant_b, 4).is_none(), "a quarter is for a third");
    let victim = take(&tenant_b, 3);
    assert!(victim.is_some());
    drop((half, own, victim));

    let own: Vec<_> = tenant_a.iter().map(|share| take(share, 1)).collect();
    assert_eq!(
        own.iter().flatten().count(),
        4,
        "own shares are also limited"
    );
    drop((own, tenant_b));

    assert!(take(first, 7).is_some(), "it is alone again");
}

#[test]
fn a_dropped_share_is_released() {
    let common = common(of_one(STEP), 0);
    for number in 0..100 {
        let share = Share::of(common, &number.to_string(), STEP);
        let mut holding = share.holding();
        assert!(holding.resize(STEP));
        drop(share);
        assert_eq!(common.taken.read(|taken| taken.namespaces.len()), 1);
    }
    assert!(common.taken.read(|taken| taken.namespaces.is_empty()));
}

#[test]
fn many_namespaces_together_leave_memory_to_another_one() {
    const ALL: usize = 64;
    for of_own in [true, false] {
        let (own, common_of) = if of_own { (ALL, 0) } else { (0, ALL) };
        let common = common(own * STEP, common_of * STEP);
        let share_of = |namespace: &str| Share::of(common, namespace, own * STEP);
        let victim = share_of("victim");
        let mut taken = 0;
        let mut held = Vec::new();
        let evil: Vec<_> = (0..7)
            .map(|number| share_of(&format!("evil-{number}")))
            .collect();
        for share in &evil {
            loop {
                let mut holding = share.holding();
                if !holding.resize(STEP) {
                    break;
                }
                taken += 1;
                held.push(holding);
            }
            held.push(share.holding());
        }
        let equal = ALL / 4 / 8;
        assert_eq!(taken, ALL * 3 / 4 + 5 * equal, "{of_own}");

        let mut own = victim.holding();
        assert!(own.resize(equal * STEP), "{of_own}: an equal part");
        assert!(!own.resize(ALL * STEP), "{of_own}: there is a limit");
        drop(own);
        drop(held);
        let all_taken = common.taken.read(|taken| (taken.own, taken.common));
        assert_eq!(all_taken, (0, 0));
    }
}

/// Holds as much memory as possible in a new share of this namespace, one step in each holding.
fn take_all(common: &'static Common, namespace: &str, own: usize) -> Vec<Holding> {
    let share = Share::of(common, namespace, own);
    let mut taken = Vec::new();
    loop {
        let mut holding = share.holding();
        if !holding.resize(STEP) {
            return taken;
        }
        taken.push(holding);
    }
}

#[test]
fn memory_in_use_by_one_namespace_leaves_a_part_to_each_new_one() {
    const ALL: usize = 48 * STEP;
    for (own, more) in [(ALL, 0), (0, ALL)] {
        let common = common(own, more);
        let take_all = |namespace: &str| take_all(common, namespace, own);
        let first = take_all("tenant-a");
        assert_eq!(first.len(), 36, "{own}: three quarters");

        let (second, third) = (take_all("tenant-b"), take_all("tenant-c"));

        assert_eq!([second.len(), third.len()], [4, 4], "{own}");
        drop(first);
        assert_eq!(take_all("tenant-b").len(), 20, "{own}: half with its 4");
    }
}

#[test]
fn a_single_namespace_gets_half_of_kept_memory() {
    const ALL: usize = 48 * STEP;
    for (own, more) in [(ALL, 0), (0, ALL)] {
        let kept: &'static Common = Box::leak(Box::new(Common::of_kept(own, more)));

        let first = take_all(kept, "tenant-a", own);
        let second = take_all(kept, "tenant-b", own);

        // The last quarter is reserved for a third namespace.
        assert_eq!([first.len(), second.len()], [24, 12], "{own}");
    }
}

#[test]
fn the_guaranteed_memory_shares_of_a_namespace_are_limited_in_total() {
    let common = common(8 * STEP, 0);
    let shares = (0..20).map(|_| Share::of(common, "tenant-a", STEP));
    let held = shares.map(|share| {
        let mut holding = share.holding();
        holding.resize(STEP).then_some(holding)
    });
    let held: Vec<_> = held.collect();
    assert_eq!(held.iter().flatten().count(), 6);
}

#[test]
fn a_greedy_share_leaves_another_its_guaranteed_memory() {
    let [greedy, other] = shares(2, 3);
    let mut all = greedy.holding();
    assert!(all.resize(5 * STEP));
    assert!(!all.resize(5 * STEP + 1));

    let mut own = other.holding();
    assert!(own.resize(2 * STEP));
    assert!(!own.resize(2 * STEP + 1), "no shared memory is left");
    all.resize(4 * STEP);

    assert!(own.resize(3 * STEP));
}

#[test]
fn released_memory_is_available_again() {
    let [one, other] = shares(1, 1);
    let (mut first, mut second) = (one.holding(), one.holding());
    assert!(first.resize(2 * STEP));
    assert!(!second.resize(1));
    first.resize(1);
    assert!(second.resize(1));
    drop(first);
    drop(second);

    assert!(one.holding().resize(2 * STEP));
    assert!(other.holding().resize(2 * STEP));
}

#[test]
fn a_memory_share_does_not_visit_other_namespaces() {
    let common = common(2000 * STEP, 2000 * STEP);
    let shares = (0..1000).map(|number| Share::of(common, &number.to_string(), STEP));
    let shares: Vec<Share> = shares.collect();

    let visited = most_visited(|| {
        let mut holding = shares[0].holding();
        assert!(holding.resize(STEP) && holding.resize(2 * STEP));
        drop((holding, Share::of(common, "another", STEP)));
    });

    assert_eq!(visited[&Lock::Memory], 0);
}
