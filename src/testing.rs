//! Makes private items available to tests: the parsers of untrusted bytes and of the store's files, the inputs of the
//! settings, and a run that tests can stop.

pub use crate::authenticator::{Observer, Step};
pub use crate::backoff::{FailureRecord, FailureScope};
pub use crate::cli::run_on;
pub use crate::credential::{Credential, Leaf};
pub use crate::exec::{ApiVersion, ExecCluster, ExecInfo};
pub use crate::inspect::inspected;
pub use crate::key::PrivateKey;
pub use crate::kube::kubeconfig::{
    ClusterEndpoint, EndpointFields, InvalidKubeconfig, Kubeconfig, KubeconfigError, Login, Refused,
};
pub use crate::kube::testing::{object, refusal, watch};
pub use crate::kube::{ApiClient, ApiError, CsrObject, CsrState, NewCsr};
pub use crate::machine::MachineDigest;
pub use crate::origin::Origin;
pub use crate::pending::{OpenRequest, Pending, Subject};
pub use crate::rotation::{Fraction, Rotation, Validity};
