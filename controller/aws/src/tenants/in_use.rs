//! The sessions of one cluster: those in use, and those that failed a short time ago.

use std::mem::take;
use std::time::SystemTime;

use crate::credentials::Credentials;
use crate::sessions::{CredentialsError, PlanCredentials};

/// More regions than a cluster has instances in. Beyond it, the session that was used longest ago goes.
const MAX_REGIONS: usize = 8;

/// More identities than a cluster has within one pause. Beyond it, the oldest goes.
const MAX_PAUSED: usize = 8;

/// The sessions of one cluster.
///
/// # Guarantees
///
/// - There is one for each region of STS, all of the same identity.
/// - Where one without credentials is left, its pause lasts: a cluster that changes its identity to and fro makes no
///   more calls.
#[derive(Debug, Default)]
pub(super) struct ClusterSessions {
    /// The one that was used last is the last.
    in_use: Vec<InUse>,
    paused: Vec<PlanCredentials>,
}

#[derive(Debug)]
struct InUse {
    /// Once their account is known.
    credentials: Option<Credentials>,
    session: PlanCredentials,
}

impl ClusterSessions {
    /// Keeps the session in the place of another of its region, and of those of another plan.
    pub(super) fn keep(
        &mut self,
        session: &PlanCredentials,
        of_plan: impl Fn(&PlanCredentials) -> bool,
    ) {
        let is_it = |known: &InUse| known.session.is_same(session);
        if let Some(index) = self.in_use.iter().position(is_it) {
            let known = self.in_use.remove(index);
            self.in_use.push(known);
            return;
        }
        let is_left =
            |known: &InUse| known.session.region() != session.region() && of_plan(&known.session);
        let (mut left, former): (Vec<_>, Vec<_>) =
            take(&mut self.in_use).into_iter().partition(is_left);
        let oldest = left.len().saturating_sub(MAX_REGIONS - 1);
        let former = former.into_iter().chain(left.drain(..oldest));
        former.for_each(|former| self.paused.push(former.session));
        self.prune();
        self.in_use = left;
        self.in_use.push(InUse {
            credentials: None,
            session: session.clone(),
        });
    }

    /// The credentials of this session, made where there are none; `None` if it is not in use any more.
    pub(super) fn credentials(
        &mut self,
        session: &PlanCredentials,
        made: impl FnOnce() -> Credentials,
    ) -> Option<Credentials> {
        let mut in_use = self.in_use.iter_mut();
        let known = in_use.find(|known| known.session.is_same(session))?;
        Some(known.credentials.get_or_insert_with(made).clone())
    }

    /// Leaves all, for the cluster has no identity.
    pub(super) fn leave(&mut self) {
        let left = take(&mut self.in_use).into_iter();
        self.paused.extend(left.map(|known| known.session));
        self.prune();
    }

    /// Forgets those whose pause is over, and returns whether any session is left.
    pub(super) fn prune(&mut self) -> bool {
        self.paused.retain(PlanCredentials::pauses);
        let oldest = self.paused.len().saturating_sub(MAX_PAUSED);
        self.paused.drain(..oldest);
        !(self.in_use.is_empty() && self.paused.is_empty())
    }

    /// The failure of the session that was used last of those that fail.
    pub(super) fn failure(&self) -> Option<CredentialsError> {
        let mut latest = self.in_use.iter().rev();
        latest.find_map(|known| known.session.condition().1)
    }

    /// The end of the session that was used last of those that have one.
    pub(super) fn expiry(&self) -> Option<SystemTime> {
        let mut latest = self.in_use.iter().rev();
        latest.find_map(|known| known.session.condition().0)
    }

    /// The sessions in use as they are shown.
    #[cfg(test)]
    pub(super) fn shown(&self) -> String {
        let shown = self.in_use.iter().map(|known| known.session.shown());
        shown.collect()
    }
}
