//! Signatures that were seen before and that STS would still accept.
//!
//! STS itself verifies that a signature belongs to one key, because the signature covers the key binding. This cache
//! verifies it again, without a call. It also saves a call if the decision on a request is repeated.
//!
//! A signature is remembered only after STS has confirmed it for a key. Evidence is public, so an attacker who presents
//! a copy first must not block the owner. With HMAC, exactly one signature exists for each request. In contrast, ECDSA
//! allows a second form.
//!
//! The cache is limited for each instance, for each cluster, for each namespace and in total. A namespace uses at most
//! half of the cache, even if no other namespace uses it, because no signature is removed before it expires. Even if
//! the cache is full, each namespace has a small reserved share, in which each cluster has a smaller share. All
//! reserved shares together are at most as large as the cache. If the cache has no space for a request's signature, the
//! request waits.

use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

use node_attestation_core::identifiers::KeyDigest;
use node_attestation_runtime::shared::{Lock, Shared, visited};

use super::request::Call;

/// The cache.
#[derive(Debug)]
pub(super) struct ReplayCache {
    inner: Shared<Inner>,
    limits: ReplayLimits,
}

/// The limits of the cache.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReplayLimits {
    /// The limit for the whole cache without the reserved shares, and twice the limit for one namespace. With the
    /// reserved shares, the limit is twice as large.
    pub(super) all: usize,
    /// The limit for one cluster.
    pub(super) of_cluster: usize,
    /// The reserved share of one cluster, which is part of its namespace's share.
    pub(super) own_of_cluster: usize,
    /// The reserved share of one namespace.
    pub(super) own_of_namespace: usize,
    /// The limit for one instance.
    pub(super) of_instance: usize,
}

/// The number of signatures that are removed at a time.
const FORGOTTEN: usize = 64;

pub(super) const LIMITS: ReplayLimits = ReplayLimits {
    // A join adds one signature, which is kept for 15 minutes. The total is about 30 MB, or 60 MB with the reserved
    // shares.
    all: 65_536,
    // Several times the number of signatures for 100 machines that join each minute.
    of_cluster: 8192,
    own_of_cluster: 256,
    // 64 namespaces fill all reserved shares.
    own_of_namespace: 1024,
    // A node creates one signature for each request, and backs off.
    of_instance: 64,
};

/// The claimed owner of a signature.
#[derive(Debug, Clone, Copy)]
pub(super) struct Owner<'a> {
    /// The namespace of the cluster.
    pub(super) namespace: &'a str,
    /// The cluster that received the signature.
    pub(super) cluster: &'a str,
    /// The instance.
    pub(super) instance: &'a str,
}

#[derive(Debug, Default)]
struct Inner {
    seen: BTreeMap<[u8; 32], Entry>,
    by_end: BTreeSet<(SystemTime, [u8; 32])>,
    of_namespace: BTreeMap<String, usize>,
    of_cluster: BTreeMap<String, usize>,
    of_instance: BTreeMap<String, usize>,
}

#[derive(Debug)]
struct Entry {
    namespace: String,
    cluster: String,
    instance: String,
    key: KeyDigest,
    content: [u8; 32],
    /// The time until which STS would accept the signature.
    until: SystemTime,
}

/// The state of a signature.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReplayCheck {
    /// The signature is unknown, or known only for another request with the same key: STS must be called.
    New,
    /// STS has confirmed the same request with the same key.
    Confirmed,
    /// STS has confirmed the signature for a different key.
    AnotherKey,
    /// The signature is unknown, and the cache has no space for it.
    Full,
}

impl ReplayCache {
    /// Creates a cache with these limits.
    pub(super) fn with_limits(limits: ReplayLimits) -> Self {
        Self {
            inner: Shared::new(Lock::StsSignatures, Inner::default()),
            limits,
        }
    }

    /// The known state of `call`'s signature, which was presented for `key`, and claimed for `owner`.
    pub(super) fn look(
        &self,
        call: &Call,
        key: &KeyDigest,
        owner: Owner<'_>,
        now: SystemTime,
    ) -> ReplayCheck {
        self.inner.write(|inner| {
            inner.forget(now);
            let seen = inner.seen.get(&call.signature);
            match seen.filter(|entry| now <= entry.until) {
                Some(entry) if entry.key != *key => ReplayCheck::AnotherKey,
                Some(entry) if entry.content == call.content => ReplayCheck::Confirmed,
                None if self.is_full(inner, owner) => ReplayCheck::Full,
                Some(_) | None => ReplayCheck::New,
            }
        })
    }

    /// Remembers, until `until`, that STS has confirmed `call` from `owner` for `key`.
    ///
    /// Returns [`ReplayCheck::New`] if the signature is now remembered.
    pub(super) fn remember(
        &self,
        call: &Call,
        key: KeyDigest,
        owner: Owner<'_>,
        until: SystemTime,
    ) -> ReplayCheck {
        let entry = Entry {
            namespace: owner.namespace.to_owned(),
            cluster: owner.cluster.to_owned(),
            instance: owner.instance.to_owned(),
            key,
            content: call.content,
            until,
        };
        self.inner.write(|inner| {
            if let Some(known) = inner.seen.get(&call.signature) {
                return if known.key == key {
                    ReplayCheck::New
                } else {
                    ReplayCheck::AnotherKey
                };
            }
            if self.is_full(inner, owner) {
                return ReplayCheck::Full;
            }
            inner.seen.insert(call.signature, entry);
            inner.by_end.insert((until, call.signature));
            let count = inner.of_instance.entry(owner.instance.to_owned());
            *count.or_default() += 1;
            let count = inner.of_cluster.entry(owner.cluster.to_owned());
            *count.or_default() += 1;
            let count = inner.of_namespace.entry(owner.namespace.to_owned());
            *count.or_default() += 1;
            ReplayCheck::New
        })
    }

    /// The `Debug` text of the cache.
    #[cfg(test)]
    pub(super) fn shown(&self) -> String {
        self.inner.read(|inner| format!("{inner:?}"))
    }

    fn is_full(&self, inner: &Inner, owner: Owner<'_>) -> bool {
        let count = |counts: &BTreeMap<String, usize>, of: &str| counts.get(of).copied();
        let of_instance = count(&inner.of_instance, owner.instance).unwrap_or_default();
        let of_cluster = count(&inner.of_cluster, owner.cluster).unwrap_or_default();
        let of_namespace = count(&inner.of_namespace, owner.namespace).unwrap_or_default();
        let all = self.limits.all;
        let is_crowded = inner.seen.len() >= all || of_namespace >= all / 2;
        let has_own = of_cluster < self.limits.own_of_cluster
            && of_namespace < self.limits.own_of_namespace
            && inner.seen.len() < 2 * all;
        of_instance >= self.limits.of_instance
            || of_cluster >= self.limits.of_cluster
            || is_crowded && !has_own
    }
}

impl Inner {
    /// Removes a few signatures that STS no longer accepts. Each lookup calls this function, and then adds at most one
    /// signature.
    fn forget(&mut self, now: SystemTime) {
        for _ in 0..FORGOTTEN {
            let Some((until, signature)) = self.by_end.first().copied() else {
                return;
            };
            if now <= until {
                return;
            }
            visited(self.by_end.pop_first().into_iter()).for_each(drop);
            let Some(entry) = self.seen.remove(&signature) else {
                continue;
            };
            forget_one(&mut self.of_instance, &entry.instance);
            forget_one(&mut self.of_cluster, &entry.cluster);
            forget_one(&mut self.of_namespace, &entry.namespace);
        }
    }
}

fn forget_one(counts: &mut BTreeMap<String, usize>, of: &str) {
    if let Some(count) = counts.get_mut(of) {
        *count -= 1;
        if *count == 0 {
            counts.remove(of);
        }
    }
}
