//! The sessions of one cluster: the sessions in use, and the sessions that failed recently.

use std::mem::take;
use std::time::SystemTime;

use crate::credentials::{Credentials, CredentialsKey};
use crate::tenancy::sessions::{CredentialsError, PlanCredentials};

/// The maximum number of regions for a cluster, which is more than the number of regions in which a cluster has
/// instances. At the limit, the least recently used session is removed.
const MAX_REGIONS: usize = 8;

/// The maximum number of pauses for a cluster, which is more than the number of identities that a cluster has within
/// one pause. At the limit, the oldest pause is removed.
const MAX_PAUSED: usize = 8;

/// The sessions of one cluster.
///
/// # Guarantees
///
/// - Each STS region has one session. All sessions have the same identity.
/// - If a session without credentials is replaced, its pause continues, so that a cluster whose identity changes back
///   and forth does not cause more calls.
#[derive(Debug, Default)]
pub(super) struct ClusterSessions {
    /// The sessions in use. The most recently used session is last.
    in_use: Vec<InUse>,
    paused: Vec<PlanCredentials>,
}

#[derive(Debug)]
struct InUse {
    /// The digest of the plan, which does not depend on the region.
    plan: Option<CredentialsKey>,
    /// Whether AWS has accepted the credentials.
    is_accepted: bool,
    /// Set after the account is known.
    credentials: Option<Credentials>,
    session: PlanCredentials,
}

impl ClusterSessions {
    /// Marks the session as the most recently used one. Returns whether it is in use.
    pub(super) fn touch(&mut self, session: &PlanCredentials) -> bool {
        let is_it = |known: &InUse| known.session.is_same(session);
        let Some(index) = self.in_use.iter().position(is_it) else {
            return false;
        };
        let known = self.in_use.remove(index);
        self.in_use.push(known);
        true
    }

    /// Keeps the session for the plan with this digest. The session replaces the session in the same region, and all
    /// sessions for a different plan.
    pub(super) fn keep(&mut self, session: &PlanCredentials, plan: Option<CredentialsKey>) {
        if self.touch(session) {
            return;
        }
        let is_left =
            |known: &InUse| known.session.region() != session.region() && known.plan == plan;
        let (mut left, former): (Vec<_>, Vec<_>) =
            take(&mut self.in_use).into_iter().partition(is_left);
        let oldest = left.len().saturating_sub(MAX_REGIONS - 1);
        let former = former.into_iter().chain(left.drain(..oldest));
        former.for_each(|former| self.paused.push(former.session));
        self.prune();
        self.in_use = left;
        self.in_use.push(InUse {
            plan,
            is_accepted: false,
            credentials: None,
            session: session.clone(),
        });
    }

    /// Returns the credentials for this session, which are created if necessary. `None` if the session is no longer in
    /// use.
    pub(super) fn credentials(
        &mut self,
        session: &PlanCredentials,
        made: impl FnOnce() -> Credentials,
    ) -> Option<Credentials> {
        let mut in_use = self.in_use.iter_mut();
        let known = in_use.find(|known| known.session.is_same(session))?;
        known.is_accepted = true;
        Some(known.credentials.get_or_insert_with(made).clone())
    }

    /// Records that AWS has accepted the credentials of this session. Returns whether the session is in use.
    pub(super) fn accept(&mut self, session: &PlanCredentials) -> bool {
        let mut in_use = self.in_use.iter_mut();
        let known = in_use.find(|known| known.session.is_same(session));
        known.is_some_and(|known| {
            known.is_accepted = true;
            true
        })
    }

    /// Whether AWS has accepted credentials for the plan with this digest.
    pub(super) fn is_accepted(&self, plan: Option<&CredentialsKey>) -> bool {
        let is_it = |known: &InUse| known.is_accepted && known.plan.as_ref() == plan;
        self.in_use.iter().any(is_it)
    }

    /// Whether AWS has accepted credentials of a session in use.
    pub(super) fn has_accepted(&self) -> bool {
        self.in_use.iter().any(|known| known.is_accepted)
    }

    /// Moves all sessions to the paused sessions, because the cluster has no identity.
    pub(super) fn leave(&mut self) {
        let left = take(&mut self.in_use).into_iter();
        self.paused.extend(left.map(|known| known.session));
        self.prune();
    }

    /// Drops the sessions whose pause is over. Returns whether any session is left.
    pub(super) fn prune(&mut self) -> bool {
        self.paused.retain(PlanCredentials::pauses);
        let oldest = self.paused.len().saturating_sub(MAX_PAUSED);
        self.paused.drain(..oldest);
        !(self.in_use.is_empty() && self.paused.is_empty())
    }

    /// The failure of the most recently used session that has failed.
    pub(super) fn failure(&self) -> Option<CredentialsError> {
        let mut latest = self.in_use.iter().rev();
        latest.find_map(|known| known.session.condition().1)
    }

    /// The expiry time of the most recently used session that has one.
    pub(super) fn expiry(&self) -> Option<SystemTime> {
        let mut latest = self.in_use.iter().rev();
        latest.find_map(|known| known.session.condition().0)
    }

    /// The `Debug` text of the sessions in use.
    #[cfg(test)]
    pub(super) fn shown(&self) -> String {
        let shown = self.in_use.iter().map(|known| known.session.shown());
        shown.collect()
    }
}
