//! The catalog of reasons. The macro [`reasons!`](crate::reasons) declares their enums. `docs/reasons.md` is
//! generated from them.

/// A reason, for the documentation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reason {
    /// The stable name, in `CamelCase`.
    pub name: &'static str,
    /// The message for the requester.
    pub message: &'static str,
    /// The meaning.
    pub meaning: &'static str,
    /// The fix, for operators.
    pub cure: &'static str,
}

/// Declares an enum of reasons. Each reason has its meaning (the doc comment), its details (`error`, in the syntax of
/// [`thiserror`]), its `cure` and, after the arrow, the message for the requester.
///
/// A provider declares its own reasons with `: EvidenceReason` ([`EvidenceReason`](crate::refusal::EvidenceReason)).
/// Its verifier denies with `?` or `into`. The package must depend on `thiserror`.
///
/// ```
/// use node_attestation_core::refusal::{Denial, Refusal};
///
/// node_attestation_core::reasons! {
///     /// Why the evidence of a machine in a rack is denied.
///     pub RackDenial: EvidenceReason {
///         /// The machine is in another rack than its provider ID.
///         #[error("the machine is in rack {rack}")]
///         #[cure("Correct the provider ID of the Machine.")]
///         AnotherRack {
///             /// The rack.
///             rack: u16,
///         } => "the machine is in another rack",
///     }
/// }
///
/// let refusal = Refusal::from(RackDenial::AnotherRack { rack: 7 });
///
/// let Refusal::Deny(denial) = refusal else { unreachable!() };
/// assert_eq!(denial.reason(), "AnotherRack");
/// assert_eq!(denial.message(), "the machine is in another rack");
/// assert_eq!(denial.cure(), "Correct the provider ID of the Machine.");
/// assert_eq!(denial.to_string(), "the machine is in rack 7");
/// assert_eq!(RackDenial::CATALOGUE[0].name, "AnotherRack");
/// assert_eq!(RackDenial::CATALOGUE[0].cure, "Correct the provider ID of the Machine.");
/// ```
// The variants in `and` wrap types that have their own reason and message.
#[macro_export]
macro_rules! reasons {
    (
        $(#[$attribute:meta])*
        $visibility:vis $name:ident $(: $of_provider:ident)? {
            $(
                $(#[doc = $meaning:literal])+
                #[error($($detail:tt)+)]
                #[cure($cure:literal)]
                $reason:ident
                $({ $( $(#[$field_attribute:meta])* $field:ident: $kind:ty ),+ $(,)? })?
                $(( $( $(#[$unnamed_attribute:meta])* $unnamed:ty ),+ ))?
                => $message:literal
            ),+ $(,)?
        }
        $(and {
            $( $(#[doc = $group_meaning:literal])+ $group:ident($group_kind:ty) ),+ $(,)?
        })?
    ) => {
        $(#[$attribute])*
        #[derive(Debug, thiserror::Error)]
        $visibility enum $name {
            $(
                $(#[doc = $meaning])+
                #[error($($detail)+)]
                $reason
                $({ $( $(#[$field_attribute])* $field: $kind ),+ })?
                $(( $( $(#[$unnamed_attribute])* $unnamed ),+ ))?
            ),+
            $(, $( $(#[doc = $group_meaning])+ #[error(transparent)] $group($group_kind) ),+ )?
        }

        impl $name {
            /// The enum's own reasons, in the order of the checks.
            $visibility const CATALOGUE: &'static [$crate::refusal::Reason] = &[
                $( $crate::refusal::Reason {
                    name: stringify!($reason),
                    message: $message,
                    meaning: concat!($($meaning),+),
                    cure: $cure,
                } ),+
            ];

            /// The stable name, for conditions, Events and the log.
            $visibility fn reason(&self) -> &'static str {
                match self {
                    $( Self::$reason { .. } => stringify!($reason), )+
                    $( $( Self::$group(of_group) => of_group.reason(), )+ )?
                }
            }

            /// The message for the requester.
            $visibility fn message(&self) -> &'static str {
                match self {
                    $( Self::$reason { .. } => $message, )+
                    $( $( Self::$group(of_group) => of_group.message(), )+ )?
                }
            }

            /// The fix, for operators.
            $visibility fn cure(&self) -> &'static str {
                match self {
                    $( Self::$reason { .. } => $cure, )+
                    $( $( Self::$group(of_group) => of_group.cure(), )+ )?
                }
            }
        }

        // Not every program uses the catalog.
        const _: &[$crate::refusal::Reason] = $name::CATALOGUE;

        $(
            impl $crate::refusal::$of_provider for $name {
                fn reason(&self) -> &'static str {
                    Self::reason(self)
                }

                fn message(&self) -> &'static str {
                    Self::message(self)
                }

                fn cure(&self) -> &'static str {
                    Self::cure(self)
                }
            }
        )?
    };
}
