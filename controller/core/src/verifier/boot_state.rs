//! When a TPM said something, by its own clock and counts.

use crate::refusal::TpmDenial;

/// When a TPM said something, by its own clock and counts (`TPMS_CLOCK_INFO` of "TPM 2.0 Library,
/// Part 2: Structures").
///
/// They only go forward, but for `TPM2_Clear`, which sets all of them to zero. So a state that is
/// behind an earlier one shows a copy of the TPM, or a restored one. It does not show every copy:
/// one that has been reset more often than the original is seen when the original speaks next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_structs,
    reason = "its fields are those of the TPM's own structure"
)]
pub struct BootState {
    /// How often the TPM was reset.
    pub reset_count: u32,
    /// How often it was restarted or resumed since.
    pub restart_count: u32,
    /// For how many milliseconds it has had power.
    pub clock: u64,
    /// Whether no greater clock was ever told. It is not after a power cut, for some seconds: that
    /// is no reason to refuse anything.
    pub safe: bool,
}

impl BootState {
    /// Checks that this can be said after `former` by the same TPM. The same state can: a request
    /// may be decided about twice.
    ///
    /// Clocks are compared within one count of resets and restarts only: after a power cut, a clock
    /// continues from where it was last written down.
    ///
    /// # Errors
    ///
    /// [`TpmDenial::TpmRolledBack`].
    pub fn follows(&self, former: &Self) -> Result<(), TpmDenial> {
        let counts = [
            (
                "count of resets",
                u64::from(former.reset_count),
                u64::from(self.reset_count),
            ),
            (
                "count of restarts",
                u64::from(former.restart_count),
                u64::from(self.restart_count),
            ),
            ("clock", former.clock, self.clock),
        ];
        let differing = counts.into_iter().find(|(_, former, now)| former != now);
        match differing {
            Some((what, former, now)) if now < former => {
                Err(TpmDenial::TpmRolledBack { what, former, now })
            }
            Some(_) | None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(reset_count: u32, restart_count: u32, clock: u64) -> BootState {
        BootState {
            reset_count,
            restart_count,
            clock,
            safe: true,
        }
    }

    fn rolled_back(former: BootState, now: BootState) -> Option<&'static str> {
        match now.follows(&former) {
            Ok(()) => None,
            Err(TpmDenial::TpmRolledBack { what, .. }) => Some(what),
            Err(other) => panic!("{other:?}"),
        }
    }

    #[test]
    fn d23_a_count_or_clock_that_went_back_is_denied() {
        let former = at(5, 2, 1000);
        for (now, expected) in [
            (at(5, 2, 1000), None),
            (at(5, 2, 1001), None),
            (at(5, 2, 999), Some("clock")),
            (at(5, 3, 0), None),
            (at(5, 1, 2000), Some("count of restarts")),
            (at(6, 0, 0), None),
            (at(4, 3, 2000), Some("count of resets")),
            // TPM2_Clear.
            (at(0, 0, 0), Some("count of resets")),
        ] {
            assert_eq!(rolled_back(former, now), expected, "{now:?}");
        }
    }

    #[test]
    fn d23_a_clock_that_is_not_safe_is_denied_for_nothing_but_going_back() {
        let unsafe_clock = BootState {
            safe: false,
            ..at(6, 0, 500)
        };
        assert_eq!(rolled_back(at(5, 2, 1000), unsafe_clock), None);
        assert_eq!(rolled_back(at(6, 0, 501), unsafe_clock), Some("clock"));
    }

    #[test]
    fn d23_the_refusal_says_what_a_person_is_to_look_for() {
        let denial = at(0, 0, 0).follows(&at(5, 2, 1000)).unwrap_err();

        assert_eq!(
            denial.to_string(),
            "the TPM's count of resets went back from 5 to 0: a copy of the TPM, a restored state, or a \
             TPM that was cleared (reset the identity, if that was you)"
        );
    }
}
