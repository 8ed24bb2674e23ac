//! Every reason, once: the enums are written with [`reasons`], and `docs/reasons.md` is made from
//! them.

/// One reason, as documentation lists it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reason {
    /// `CamelCase`, stable.
    pub name: &'static str,
    /// What the requester reads.
    pub message: &'static str,
    /// What it means.
    pub meaning: &'static str,
}

/// Declares an enum of reasons: for each its meaning (the doc comment), its details (`error`) and,
/// after the arrow, the message for the requester. What follows in `and` are enums of the same kind
/// whose reasons belong to it.
macro_rules! reasons {
    (
        $(#[$attribute:meta])*
        $name:ident {
            $(
                $(#[doc = $meaning:literal])+
                #[error($($detail:tt)+)]
                $reason:ident
                $({ $( $(#[$field_attribute:meta])* $field:ident: $kind:ty ),+ $(,)? })?
                => $message:literal
            ),+ $(,)?
        }
        $(and {
            $( $(#[doc = $group_meaning:literal])+ $group:ident($group_kind:ty) ),+ $(,)?
        })?
    ) => {
        $(#[$attribute])*
        #[derive(Debug, thiserror::Error)]
        pub enum $name {
            $(
                $(#[doc = $meaning])+
                #[error($($detail)+)]
                $reason $({ $( $(#[$field_attribute])* $field: $kind ),+ })?
            ),+
            $(, $( $(#[doc = $group_meaning])+ #[error(transparent)] $group(#[from] $group_kind) ),+ )?
        }

        impl $name {
            /// All that are this enum's own, in the order of the checks.
            pub const CATALOGUE: &'static [$crate::refusal::Reason] = &[
                $( $crate::refusal::Reason {
                    name: stringify!($reason),
                    message: $message,
                    meaning: concat!($($meaning),+),
                } ),+
            ];

            /// The stable name, for conditions, events and the log.
            pub fn reason(&self) -> &'static str {
                match self {
                    $( Self::$reason { .. } => stringify!($reason), )+
                    $( $( Self::$group(of_group) => of_group.reason(), )+ )?
                }
            }

            /// What the requester may read.
            pub fn message(&self) -> &'static str {
                match self {
                    $( Self::$reason { .. } => $message, )+
                    $( $( Self::$group(of_group) => of_group.message(), )+ )?
                }
            }
        }
    };
}

pub(super) use reasons;

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use crate::refusal::{AwsDenial, Deferral, Denial, Failure, Ignored, Reason, TpmDenial};

    const PREAMBLE: &str = "# Reasons

Why a certificate signing request got no certificate. The reason is on the request's condition, on the event and in the
log. This page is made from the code: `UPDATE=1 cargo test -p node-attestation-controller catalogue`.
";

    /// The document that lists every reason.
    fn markdown() -> String {
        let outcomes = [
            (
                "Denied",
                "A contradiction: somebody lies, or is misconfigured. Asking again changes nothing.",
                [
                    Denial::CATALOGUE,
                    AwsDenial::CATALOGUE,
                    TpmDenial::CATALOGUE,
                ]
                .concat(),
            ),
            (
                "Failed",
                "Nobody's fault, but this request can never be issued. The node files a new one.",
                Failure::CATALOGUE.to_vec(),
            ),
            (
                "Pending",
                "An outage, or not yet. The request stays as it is, and is tried again.",
                Deferral::CATALOGUE.to_vec(),
            ),
            (
                "Ignored",
                "Not ours to answer. Nothing is written.",
                Ignored::CATALOGUE.to_vec(),
            ),
        ];
        let mut text = PREAMBLE.to_owned();
        for (title, about, reasons) in outcomes {
            // Writing to a string does not fail.
            let _ = write!(
                text,
                "\n## {title}\n\n{about}\n\n| reason | what the requester reads | what it means |\n| --- | --- | --- |\n"
            );
            for reason in reasons {
                let Reason { name, message, .. } = reason;
                let _ = writeln!(text, "| `{name}` | {message} | {} |", reason.meaning.trim());
            }
        }
        text
    }

    #[test]
    fn the_document_lists_the_reasons_that_the_code_has() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reasons.md");
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(path, markdown()).unwrap();
        }

        let document = std::fs::read_to_string(path).unwrap();

        assert!(
            document == markdown(),
            "docs/reasons.md is stale: run this test with UPDATE=1"
        );
    }

    #[test]
    fn no_two_reasons_share_a_name() {
        let all = [
            Denial::CATALOGUE,
            AwsDenial::CATALOGUE,
            TpmDenial::CATALOGUE,
            Failure::CATALOGUE,
            Deferral::CATALOGUE,
            Ignored::CATALOGUE,
        ]
        .concat();
        let mut names: Vec<_> = all.iter().map(|reason| reason.name).collect();
        names.sort_unstable();
        names.dedup();

        assert_eq!(names.len(), all.len());
    }
}
