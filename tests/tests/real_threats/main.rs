//! Tests of attacks with a bootstrap token, a worker, read access to all requests, write access to the workload
//! cluster, or a tenant's namespace. The management cluster, the workload cluster and the kubelets are real.

mod disk;
mod policy;
mod tenant;
mod token;
mod worker;

use std::sync::LazyLock;

use kubelet_authenticator_tests::scene::{Scene, Site};
use serde_json::json;

/// The site that all tests share, because every test has separate machines.
static SCENE: LazyLock<Scene> = LazyLock::new(|| {
    let settings = json!({"autoApproveBindings": "Remove"});
    Scene::start(&Site::start(), "default", settings)
});
