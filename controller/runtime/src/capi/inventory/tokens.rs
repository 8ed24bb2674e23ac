//! The bootstrap tokens of the machines of one Cluster.

use std::collections::BTreeSet;
use std::time::Instant;

use node_attestation_core::identifiers::TokenId;
use node_attestation_core::pace::yield_now;
use node_attestation_core::refusal::Unavailable;

use super::super::api_discovery::FetchError;
use super::super::objects::{Machine, Reference};
use super::CapiInventory;
use super::fetched::unread;
use super::view::{Need, View};

/// The maximum number of reads in one call. The reads have low priority.
const READS_FOR_TOKENS: usize = 50;

/// The tokens of some machines or pools.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct OwnedTokens {
    /// The tokens in the `KubeadmConfig`s that were read.
    pub(crate) tokens: BTreeSet<TokenId>,
    /// Whether all `KubeadmConfig`s were read. Otherwise, each unknown token can be one of these tokens.
    pub(crate) are_all: bool,
}

/// The tokens of all Machines. Machines can share a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct InventoryTokens {
    /// The tokens of Machines whose Nodes Cluster API has not found yet.
    pub(crate) joining: OwnedTokens,
    /// The tokens of the other Machines.
    pub(crate) joined: OwnedTokens,
    /// The tokens of Machines that are being deleted.
    pub(crate) deleting: BTreeSet<TokenId>,
}

/// The state of the token of a machine.
enum Seen {
    /// The `KubeadmConfig` has not been read.
    Unread,
    /// The token, if the `KubeadmConfig` has one.
    Read(Option<TokenId>),
}

/// The state of a Machine.
enum State {
    Joining,
    Joined,
    Deleting,
}

impl State {
    fn of(machine: &Machine) -> Self {
        if machine.deleting {
            Self::Deleting
        } else if machine.node.is_some() {
            Self::Joined
        } else {
            Self::Joining
        }
    }
}

impl OwnedTokens {
    fn none() -> Self {
        Self {
            tokens: BTreeSet::new(),
            are_all: true,
        }
    }

    fn add(&mut self, seen: Seen) {
        match seen {
            Seen::Read(token) => self.tokens.extend(token),
            Seen::Unread => self.are_all = false,
        }
    }
}

impl CapiInventory {
    /// The bootstrap tokens of all Machines.
    ///
    /// `None` while the inventory is unavailable. Each call reads only a few `KubeadmConfig`s. A `KubeadmConfig` that
    /// cannot be read hides only its own token. Excludes the [tokens of pools](Self::pool_tokens).
    pub(crate) async fn machine_tokens(&self) -> Option<InventoryTokens> {
        self.read_due(Need::All).await?;
        let of = |view: View<'_>, _: &str, machine: &Machine| {
            let seen = match view.config(machine) {
                Some(config) => Seen::Read(config.token.clone()),
                None if view.must_read(machine) => Seen::Unread,
                None => Seen::Read(None),
            };
            Some((State::of(machine), seen))
        };
        let (mut joining, mut joined) = (OwnedTokens::none(), OwnedTokens::none());
        let mut deleting = OwnedTokens::none();
        for (state, seen) in self.each(of).await.ok()? {
            match state {
                State::Joining => joining.add(seen),
                State::Joined => joined.add(seen),
                State::Deleting => deleting.add(seen),
            }
        }
        Some(InventoryTokens {
            joining,
            joined,
            deleting: deleting.tokens,
        })
    }

    /// The current bootstrap tokens of all pools, except pools that are being deleted. Like
    /// [`machine_tokens`](Self::machine_tokens).
    ///
    /// The `KubeadmConfig` of a pool is read again, because the bootstrap provider replaces a token that was deleted.
    pub(crate) async fn pool_tokens(&self) -> Option<OwnedTokens> {
        self.read_due(Need::Pools).await?;
        let (mut all, mut last) = (OwnedTokens::none(), None::<String>);
        loop {
            let next = self.look(|view| Ok(view.next_pool_tokens(last.as_deref())));
            let (found, are_read, next) = next.ok()?;
            all.tokens.extend(found);
            all.are_all &= are_read;
            if next.is_none() {
                return Some(all);
            }
            last = next;
            yield_now().await;
        }
    }

    /// Reads some of the `KubeadmConfig`s that are due. `None` if they cannot be read now.
    async fn read_due(&self, need: Need) -> Option<()> {
        let due = self.next_due(need).await.ok()?;
        let reads = async {
            for config in due {
                let _reading = self.reading.lock().await;
                // Another call might have read the `KubeadmConfig` since then.
                if self.look(|view| Ok(view.is_wanted(need, &config.name)))? {
                    self.read_unless_unreadable(&config).await?;
                }
            }
            Ok::<(), Unavailable>(())
        };
        let read = self.objects.read_slowly(&self.cluster, reads).await;
        read?.ok()
    }

    /// The next page of `KubeadmConfig`s that are due. The first page follows the last one.
    async fn next_due(&self, need: Need) -> Result<BTreeSet<Reference>, Unavailable> {
        let mut places = self.reading.lock().await;
        loop {
            let limit = (READS_FOR_TOKENS, Instant::now());
            let page = self.next_page(limit, &mut places, |view| {
                view.need(need);
                Ok(())
            })?;
            if page.is_whole || !page.unread.is_empty() {
                return Ok(page.unread);
            }
        }
    }

    /// Reads a `KubeadmConfig`. The `KubeadmConfig` stays unread if only this object cannot be read.
    async fn read_unless_unreadable(&self, config: &Reference) -> Result<(), Unavailable> {
        match self.try_read(config).await {
            Err(FetchError::Call(kube::Error::Api(_) | kube::Error::SerdeError(_))) => Ok(()),
            read => read.map_err(|error| unread(config, &error)),
        }
    }
}
