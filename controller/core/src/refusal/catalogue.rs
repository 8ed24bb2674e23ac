//! Every reason, once: the enums are written with [`reasons!`](crate::reasons), and `docs/reasons.md`
//! is made from them.

/// One reason, as documentation lists it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reason {
    /// `CamelCase`, stable.
    pub name: &'static str,
    /// The message for the requester.
    pub message: &'static str,
    /// Its meaning.
    pub meaning: &'static str,
    /// The cure, for an operator.
    pub cure: &'static str,
}

/// Declares an enum of reasons: for each its meaning (the doc comment), its details (`error`, as
/// [`thiserror`] reads it), its `cure` and, after the arrow, the message for the requester.
///
/// A provider declares its own with `: EvidenceReason`
/// ([`EvidenceReason`](crate::refusal::EvidenceReason)), and its verifier denies with `?` or `into`.
/// The package needs `thiserror`.
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
/// assert_eq!(denial.to_string(), "the machine is in rack 7");
/// assert_eq!(RackDenial::CATALOGUE[0].name, "AnotherRack");
/// assert_eq!(RackDenial::CATALOGUE[0].cure, "Correct the provider ID of the Machine.");
/// ```
// What follows in `and` are variants around types that have a reason and a message themselves.
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
            /// All that are this enum's own, in the order of the checks.
            $visibility const CATALOGUE: &'static [$crate::refusal::Reason] = &[
                $( $crate::refusal::Reason {
                    name: stringify!($reason),
                    message: $message,
                    meaning: concat!($($meaning),+),
                    cure: $cure,
                } ),+
            ];

            /// The stable name, for conditions, events and the log.
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
        }

        // Not every program prints it.
        const _: &[$crate::refusal::Reason] = $name::CATALOGUE;

        $(
            impl $crate::refusal::$of_provider for $name {
                fn reason(&self) -> &'static str {
                    Self::reason(self)
                }

                fn message(&self) -> &'static str {
                    Self::message(self)
                }
            }
        )?
    };
}
