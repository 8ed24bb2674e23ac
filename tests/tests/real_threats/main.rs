//! What attackers try who hold something: a bootstrap token, a worker, sight of all requests, a
//! tenant's namespace. Management cluster, workload cluster, kubelets: all real.

mod scene;
mod tenant;
mod token;
mod worker;
