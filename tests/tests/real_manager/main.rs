//! What the controller does for a Cluster beside first joins, by a KubeletAuthentication alone: two
//! API servers, Cluster API's objects, and the program that people run.

mod adoption;
mod closing;
mod control_plane;
mod enablement;
mod names;
mod revocation;
mod serving;
mod stock;
mod tokens;

use std::sync::{Arc, LazyLock};

use kubelet_authenticator_tests::scene::Site;

/// Shared: every test has a Cluster of its own, or machines of its own in one.
static SITE: LazyLock<Arc<Site>> = LazyLock::new(Site::start);
