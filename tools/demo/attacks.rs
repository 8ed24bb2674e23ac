//! The attacks with a bootstrap token, and their outcomes.

use crate::attacker::{Attacker, BUILT_IN, INSECURE, Verdict, Wish};

/// A machine whose bootstrap token leaked before the machine joined.
pub const LEAKED: &str = "worker-2";

/// A machine whose bootstrap token leaked, and which has joined.
pub const JOINED: &str = "worker-1";

/// The description of a request without an outcome.
pub const UNDECIDED: &str = "undecided";

/// The required outcome of an attack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected {
    /// The request is refused, for this reason.
    Denied(&'static str),
    /// The request remains pending, for this reason, while the legitimate holder's certificate is valid.
    Waits(&'static str),
    /// The attack succeeds, because the provider does not use evidence.
    NotStopped,
}

/// An attack with a leaked token.
pub struct Attack {
    /// The machine to which the token belongs.
    pub token: &'static str,
    /// A short description.
    pub what: &'static str,
    /// The outcome in a cluster with kubeadm's bindings.
    pub stock: &'static str,
    /// The outcome with the project's signer.
    pub expected: Expected,
    kind: Kind,
}

enum Kind {
    Wish(fn(&'static str) -> Wish),
    Copy,
}

/// The attacks, in the order of the demo.
pub const ATTACKS: [Attack; 7] = [
    Attack {
        token: LEAKED,
        what: "a control-plane node's name",
        stock: "issued",
        expected: Expected::Denied("ProviderIdOfAnotherMachine"),
        kind: Kind::Wish(|signer| Wish::node("control-plane-1", signer)),
    },
    Attack {
        token: LEAKED,
        what: "the same name, with worker-2's provider ID",
        stock: "issued",
        expected: Expected::Denied("NodeNameMismatch"),
        kind: Kind::Wish(|signer| Wish {
            node: "control-plane-1",
            ..Wish::node(LEAKED, signer)
        }),
    },
    Attack {
        token: LEAKED,
        what: "an IP address as a subject alternative name",
        stock: UNDECIDED,
        expected: Expected::Denied("SubjectAltNameRequested"),
        kind: Kind::Wish(|signer| Wish {
            address: Some([10, 96, 0, 1].into()),
            ..Wish::node(LEAKED, signer)
        }),
    },
    Attack {
        token: LEAKED,
        what: "O=system:masters",
        stock: UNDECIDED,
        expected: Expected::Denied("SubjectOrganization"),
        kind: Kind::Wish(|signer| Wish {
            organization: "system:masters",
            ..Wish::node(LEAKED, signer)
        }),
    },
    Attack {
        token: LEAKED,
        what: "a copy of worker-1's request",
        stock: "issued",
        expected: Expected::Denied("ProviderIdOfAnotherMachine"),
        kind: Kind::Copy,
    },
    Attack {
        token: JOINED,
        what: "worker-1's name and token, with another key",
        stock: "issued",
        expected: Expected::Waits("IdentityLive"),
        kind: Kind::Wish(|signer| Wish::node(JOINED, signer)),
    },
    Attack {
        token: LEAKED,
        what: "worker-2's own name, before worker-2 joins",
        stock: "issued",
        expected: Expected::NotStopped,
        kind: Kind::Wish(|signer| Wish::node(LEAKED, signer)),
    },
];

impl Attack {
    /// Runs the attack on the project's signer. `victim` is the name of worker-1's request.
    pub fn on_us(&self, attacker: &Attacker, victim: &str) -> Verdict {
        match self.kind {
            Kind::Wish(wish) => attacker.ask(&wish(INSECURE)),
            Kind::Copy => {
                let request = attacker.read_request(victim);
                attacker.file(INSECURE, &request)
            }
        }
    }

    /// Runs the attack on Kubernetes' own signer. `victim` is another client's `spec.request`.
    pub fn on_stock(&self, attacker: &Attacker, victim: &str) -> Verdict {
        match self.kind {
            Kind::Wish(wish) => attacker.ask(&wish(BUILT_IN)),
            Kind::Copy => attacker.file(BUILT_IN, victim),
        }
    }

    /// Whether the outcome with the project's signer is as expected.
    pub fn as_expected(&self, verdict: &Verdict) -> bool {
        match (self.expected, verdict) {
            (Expected::Denied(expected), Verdict::Refused { kind, reason, .. }) => {
                kind == "Denied" && reason == expected
            }
            (Expected::Waits(_), Verdict::Undecided)
            | (Expected::NotStopped, Verdict::Issued(_)) => true,
            _ => false,
        }
    }
}

impl Verdict {
    /// A short description for a table.
    pub fn summary(&self) -> String {
        match self {
            Self::Issued(_) => "issued".to_owned(),
            Self::Refused { kind, reason, .. } => format!("{kind}: {reason}"),
            Self::Undecided => UNDECIDED.to_owned(),
        }
    }
}
