//! Findings from verifiers about the machines of a cluster.

use std::time::SystemTime;

use crate::crd::conditions::ConditionReport;

/// Findings about the machines of a cluster: conditions, and metric values.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Findings {
    /// Conditions for the `KubeletAuthentication`.
    pub conditions: Vec<ConditionReport>,
    /// The certificate that expires first. Only certificates that expire soon, and that machines need for their
    /// evidence, are considered.
    pub expiring: Option<Expiring>,
    /// The number of machines whose firmware does not measure the boot. `None` if no verifier checks the boot
    /// measurements.
    pub unmeasured: Option<usize>,
}

/// A certificate that expires soon, or has expired.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Expiring {
    /// The expiry time.
    pub at: SystemTime,
    /// The subject, for operators.
    pub subject: String,
}

impl Findings {
    /// Merges the findings from two verifiers.
    #[must_use]
    pub(crate) fn and(mut self, other: Self) -> Self {
        self.conditions.extend(other.conditions);
        let expiring = self.expiring.into_iter().chain(other.expiring);
        let unmeasured = self.unmeasured.into_iter().chain(other.unmeasured);
        Self {
            conditions: self.conditions,
            expiring: expiring.min(),
            unmeasured: unmeasured.reduce(usize::saturating_add),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    fn found(second: u64, unmeasured: Option<usize>) -> Findings {
        Findings {
            conditions: Vec::new(),
            expiring: Some(Expiring {
                at: UNIX_EPOCH + Duration::from_secs(second),
                subject: format!("CN={second}"),
            }),
            unmeasured,
        }
    }

    #[test]
    fn the_findings_of_two_verifiers_are_merged() {
        let both = found(2, Some(3)).and(found(1, Some(4)));
        assert_eq!(both, found(1, Some(7)));
        let one = Findings::default()
            .and(found(1, None))
            .and(Findings::default());
        assert_eq!(one, found(1, None));
    }
}
