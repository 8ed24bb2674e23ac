//! Records that live as long as the process.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use futures::future::{BoxFuture, FutureExt as _, ready};
use kubelet_attestation::names::{NodeName, ProviderId};

use super::{CertificateUid, Claim, Grant, Holder, KeyDigest, Ledger, RecordUid, Renewal};
use crate::refusal::{Deferral, Denial, Refusal};
use crate::verifier::Assurance;

/// A ledger in memory. A restart forgets who holds which name, so first use is trusted again.
pub struct MemoryLedger {
    records: Mutex<HashMap<NodeName, Record>>,
    entropy: Entropy,
}

/// Where the random bytes of a record's UID come from; `None` when there are none to be had.
type Entropy = Box<dyn Fn() -> Option<[u8; 16]> + Send + Sync>;

#[derive(Debug)]
struct Record {
    uid: CertificateUid,
    holder: ProviderId,
    assurance: Assurance,
    key: KeyDigest,
    not_after: SystemTime,
}

impl Default for MemoryLedger {
    fn default() -> Self {
        Self::with_entropy(|| {
            let mut bytes = [0; 16];
            aws_lc_rs::rand::fill(&mut bytes).ok()?;
            Some(bytes)
        })
    }
}

impl MemoryLedger {
    /// An empty ledger whose UIDs are made from these bytes.
    pub fn with_entropy(entropy: impl Fn() -> Option<[u8; 16]> + Send + Sync + 'static) -> Self {
        Self {
            records: Mutex::default(),
            entropy: Box::new(entropy),
        }
    }

    fn records(&self) -> MutexGuard<'_, HashMap<NodeName, Record>> {
        // Every change of the map is one insertion, so a panic elsewhere leaves it whole.
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn claimed(&self, claim: &Claim, now: SystemTime) -> Result<Grant, Refusal> {
        let identity = claim.assurance.identity();
        let mut records = self.records();
        let elsewhere = records.iter().find(|(name, record)| {
            **name != claim.node_name
                && record.holder == identity.provider_id
                && record.is_live(now)
        });
        if let Some((name, _)) = elsewhere {
            return Err(identity_live(name).into());
        }
        let uid = match records.get_mut(&claim.node_name) {
            Some(record) if record.holder == identity.provider_id => {
                if record.is_live(now) && record.key != claim.key {
                    return Err(identity_live(&claim.node_name).into());
                }
                if record.is_live(now) {
                    return Ok(record.granted_again(claim));
                }
                record.uid.next()
            }
            Some(record) if record.is_live(now) => {
                return Err(Denial::NameTaken {
                    node_name: claim.node_name.clone(),
                    holder: record.holder.clone(),
                }
                .into());
            }
            Some(record) => record.uid.next(),
            None => self.new_uid()?,
        };
        // Where its machine has another name now, no certificate of the former one is valid any
        // more.
        records.retain(|_, record| record.holder != identity.provider_id);
        records.insert(
            claim.node_name.clone(),
            Record {
                uid,
                holder: identity.provider_id.clone(),
                assurance: claim.assurance.clone(),
                key: claim.key,
                not_after: claim.not_after,
            },
        );
        Ok(Grant {
            uid,
            not_after: claim.not_after,
        })
    }

    fn renewed(&self, renewal: &Renewal) -> Result<Grant, Refusal> {
        let mut records = self.records();
        let Some(record) = records.get_mut(&renewal.node_name) else {
            return Err(Denial::RecordMissing {
                node_name: renewal.node_name.clone(),
            }
            .into());
        };
        if record.uid != renewal.uid {
            return Err(Denial::FormerCertificate {
                node_name: renewal.node_name.clone(),
                presented: renewal.uid,
            }
            .into());
        }
        let identity = renewal.identity.identity();
        if record.holder != identity.provider_id {
            return Err(Denial::NameTaken {
                node_name: renewal.node_name.clone(),
                holder: record.holder.clone(),
            }
            .into());
        }
        record.extend(renewal.not_after);
        Ok(Grant {
            uid: record.uid,
            not_after: renewal.not_after,
        })
    }

    fn held(&self, node_name: &NodeName, uid: Option<CertificateUid>) -> Result<Holder, Denial> {
        let records = self.records();
        let record = records
            .get(node_name)
            .ok_or_else(|| Denial::RecordMissing {
                node_name: node_name.clone(),
            })?;
        match uid {
            Some(presented) if presented != record.uid => Err(Denial::FormerCertificate {
                node_name: node_name.clone(),
                presented,
            }),
            Some(_) | None => Ok(Holder {
                uid: record.uid,
                assurance: record.assurance.clone(),
            }),
        }
    }

    fn new_uid(&self) -> Result<CertificateUid, Deferral> {
        let random = (self.entropy)().ok_or_else(|| Deferral::LedgerUnavailable {
            source: crate::refusal::Unavailable::new("no random bytes"),
        })?;
        Ok(CertificateUid {
            record: RecordUid::new(random),
            generation: 1,
        })
    }
}

impl Record {
    /// Whether a certificate of its generation can still be valid.
    fn is_live(&self, now: SystemTime) -> bool {
        now <= self.not_after
    }

    /// The claim that opened the generation, once more.
    fn granted_again(&mut self, claim: &Claim) -> Grant {
        let not_after = match claim.assurance {
            Assurance::None(_) => claim.not_after.min(self.not_after),
            Assurance::Attested(_) => claim.not_after,
        };
        self.extend(not_after);
        Grant {
            uid: self.uid,
            not_after,
        }
    }

    fn extend(&mut self, not_after: SystemTime) {
        self.not_after = self.not_after.max(not_after);
    }
}

fn identity_live(node_name: &NodeName) -> Deferral {
    Deferral::IdentityLive {
        node_name: node_name.clone(),
    }
}

impl Ledger for MemoryLedger {
    fn claim<'a>(
        &'a self,
        claim: &'a Claim,
        now: SystemTime,
    ) -> BoxFuture<'a, Result<Grant, Refusal>> {
        ready(self.claimed(claim, now)).boxed()
    }

    fn renew<'a>(
        &'a self,
        renewal: &'a Renewal,
        _now: SystemTime,
    ) -> BoxFuture<'a, Result<Grant, Refusal>> {
        ready(self.renewed(renewal)).boxed()
    }

    fn holder<'a>(
        &'a self,
        node_name: &'a NodeName,
        uid: Option<CertificateUid>,
        _now: SystemTime,
    ) -> BoxFuture<'a, Result<Holder, Refusal>> {
        ready(self.held(node_name, uid).map_err(Refusal::from)).boxed()
    }
}

impl fmt::Debug for MemoryLedger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryLedger")
            .field("records", &*self.records())
            .finish_non_exhaustive()
    }
}
