//! Signatures that were seen before, while STS would still take them.
//!
//! That a signature belongs to one key is what STS itself says, because the key binding is among
//! what is signed. This memory says it a second time, without a call, and spares the call where a
//! request of ours is decided about again.
//!
//! A signature is remembered once STS has confirmed it for a key: evidence is public, and whoever
//! shows a copy of it first must not spoil it for its owner. HMAC has one signature for a request,
//! so that there is no second form of one (as there is with ECDSA).
//!
//! What is remembered is bounded, for each instance and in all. Where it is full, requests wait:
//! nothing is forgotten before its time.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use node_attestation_controller::ledger::KeyDigest;

use super::VerifiedCaller;
use super::request::Call;

/// Signatures of all instances: a join leaves one, and they stay for fifteen minutes. Some 30 MB.
pub(super) const MAX_SIGNATURES: usize = 65_536;

/// Signatures of one instance: a node makes one for each request it files, and backs off.
pub(super) const MAX_OF_INSTANCE: usize = 64;

/// The memory.
#[derive(Debug)]
pub(super) struct Signatures {
    inner: Mutex<Inner>,
    all: usize,
    of_instance: usize,
}

#[derive(Debug, Default)]
struct Inner {
    seen: HashMap<[u8; 32], Entry>,
    by_end: BTreeSet<(SystemTime, [u8; 32])>,
    of_instance: HashMap<String, usize>,
}

#[derive(Debug)]
struct Entry {
    key: KeyDigest,
    content: [u8; 32],
    caller: VerifiedCaller,
}

/// What is known of a signature.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Sighting {
    /// Nothing, or only a request of the same key that says something else: STS is to be asked.
    New,
    /// The same request of the same key, which STS has confirmed.
    Confirmed(VerifiedCaller),
    /// STS has confirmed it for another key.
    AnotherKey,
    /// Nothing, and there is no room to remember it.
    Full,
}

impl Signatures {
    /// A memory of so many signatures, and of so many of one instance.
    pub(super) fn with_limits(all: usize, of_instance: usize) -> Self {
        Self {
            inner: Mutex::default(),
            all,
            of_instance,
        }
    }

    /// What is known of the signature of `call`, shown for `key` and said to be of `instance`.
    pub(super) fn look(
        &self,
        call: &Call,
        key: &KeyDigest,
        instance: &str,
        now: SystemTime,
    ) -> Sighting {
        let mut inner = self.lock();
        inner.forget(now);
        match inner.seen.get(&call.signature) {
            Some(entry) if entry.key != *key => Sighting::AnotherKey,
            Some(entry) if entry.content == call.content => {
                Sighting::Confirmed(entry.caller.clone())
            }
            None if self.is_full(&inner, instance) => Sighting::Full,
            Some(_) | None => Sighting::New,
        }
    }

    /// Remembers until then that STS has confirmed `call` for `key`.
    ///
    /// The answer is [`Sighting::New`] where it is remembered.
    pub(super) fn remember(
        &self,
        call: &Call,
        key: KeyDigest,
        caller: &VerifiedCaller,
        until: SystemTime,
    ) -> Sighting {
        let mut inner = self.lock();
        if let Some(entry) = inner.seen.get(&call.signature) {
            return if entry.key == key {
                Sighting::New
            } else {
                Sighting::AnotherKey
            };
        }
        if self.is_full(&inner, caller.instance()) {
            return Sighting::Full;
        }
        let entry = Entry {
            key,
            content: call.content,
            caller: caller.clone(),
        };
        inner.seen.insert(call.signature, entry);
        inner.by_end.insert((until, call.signature));
        let count = inner.of_instance.entry(caller.instance().to_owned());
        *count.or_default() += 1;
        Sighting::New
    }

    fn is_full(&self, inner: &Inner, instance: &str) -> bool {
        let of_instance = inner.of_instance.get(instance).copied().unwrap_or_default();
        inner.seen.len() >= self.all || of_instance >= self.of_instance
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Whoever panicked left whole entries.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Forgets what STS takes no more.
    fn forget(&mut self, now: SystemTime) {
        while let Some((until, signature)) = self.by_end.first().copied()
            && until < now
        {
            self.by_end.pop_first();
            let Some(entry) = self.seen.remove(&signature) else {
                continue;
            };
            let instance = entry.caller.instance();
            if let Some(count) = self.of_instance.get_mut(instance) {
                *count -= 1;
                if *count == 0 {
                    self.of_instance.remove(instance);
                }
            }
        }
    }
}
