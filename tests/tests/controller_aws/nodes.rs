//! Instances with the real plugin on them: what it is told, and tells.

use kubelet_authenticator_test_support::imds::Credentials;
use kubelet_authenticator_test_support::process::poll;
use kubelet_authenticator_test_support::sts::{Fault, Principal, Times};
use kubelet_authenticator_tests::cloud::{ACCOUNT, Cloud, Instance};
use kubelet_authenticator_tests::controller::{Bed, Controller, reason_of, token_of_instance};
use kubelet_authenticator_tests::node::{Node, PATIENCE, Run};
use serde_json::Value;

/// A cluster, its cloud, and a node that is to join.
struct World {
    cloud: Cloud,
    bed: Bed,
    controller: Controller,
    instance: Instance,
    node: Node,
}

impl World {
    fn start() -> Self {
        let cloud = Cloud::start();
        let instances = cloud.launch_many(1, &[]);
        let bed = Bed::instances(&cloud, &instances);
        let mut controller = bed.setup.start();
        controller.wait_until_it_watches();
        let instance = instances.into_iter().next().unwrap();
        let token = token_of_instance(0);
        let secret = "0123456789abcdef";
        bed.server.add_token(&token, secret);
        let mut node = Node::new("kubelet-authenticator-aws", &bed.server);
        let bootstrap = bed
            .server
            .write_bootstrap_kubeconfig(node.scratch().path(), &format!("{token}.{secret}"));
        node.set("BOOTSTRAP_KUBECONFIG", bootstrap);
        node.unset("PROVIDER_ID");
        for (name, value) in instance.plugin_environment(&cloud) {
            node.set_env(name, value);
        }
        Self {
            cloud,
            bed,
            controller,
            instance,
            node,
        }
    }

    fn run(&self) -> Run {
        self.node.start(&["credential", "--verbose"]).finish()
    }

    #[track_caller]
    fn joins_in_the_end(&self) {
        let joined = poll(PATIENCE, || (self.run().code == Some(0)).then_some(()));
        assert!(joined.is_some(), "{}", self.controller.process.log());
    }

    /// Gives the instance credentials that end, for STS, at once; the metadata say nothing of it.
    fn expire_credentials(&self) {
        let principal = Principal::instance(ACCOUNT, &self.instance.ec2.id);
        let now = self.cloud.sts().now();
        let given = self.cloud.sts().credentials_until(principal, now);
        self.instance.imds.update(|metadata| {
            let end = metadata.identity_credentials.as_ref().unwrap().expiration;
            metadata.identity_credentials = Some(Credentials {
                access_key_id: given.access_key_id.clone(),
                secret_access_key: given.secret_access_key.clone(),
                session_token: given.session_token.clone(),
                expiration: end,
            });
        });
    }

    /// What nobody may read: what the instance was given, and every signature that was made of it.
    fn secrets(&self) -> Vec<String> {
        let mut secrets = Vec::new();
        self.instance.imds.update(|metadata| {
            let credentials = metadata.identity_credentials.as_ref().unwrap();
            secrets.push(credentials.access_key_id.clone());
            secrets.push(credentials.secret_access_key.clone());
            secrets.push(credentials.session_token.clone());
        });
        for body in self.bed.server.created_bodies() {
            let body: Value = serde_json::from_slice(&body).unwrap();
            if let Some(request) = body["spec"]["request"].as_str() {
                let request =
                    base64::Engine::decode(&base64::engine::general_purpose::STANDARD, request);
                let blocks = pem::parse_many(request.unwrap()).unwrap();
                let evidence: Value = serde_json::from_slice(blocks[2].contents()).unwrap();
                secrets.push(evidence["sts"]["signature"].as_str().unwrap().to_owned());
            }
        }
        secrets
    }

    /// Asserts that neither what was said here nor anything that the cluster keeps has a secret.
    #[track_caller]
    fn tells_no_secret(&self, runs: &[Run]) {
        let mut told = self.controller.process.log().text();
        for run in runs {
            told += &run.stdout;
            told += &run.stderr;
        }
        told += &self.node.command(&["status"]).stdout;
        told += &self.node.json("failure.json").to_string();
        for event in self.bed.server.events() {
            told += &event.to_string();
        }
        for csr in self.bed.server.csrs() {
            told += &csr["metadata"].to_string();
            told += &csr["status"].to_string();
        }
        let secrets = self.secrets();
        assert!(secrets.len() > 3, "there was no request");
        for secret in secrets {
            assert!(!told.contains(&secret), "{secret} is told in {told}");
        }
    }
}

#[test]
fn c10_credentials_that_ended_between_metadata_and_sts_are_13_and_others_join() {
    let world = World::start();
    world.expire_credentials();

    let failed = world.run().failed(13).saying("EvidenceExpired");

    assert_eq!(world.cloud.sts().calls()[0].outcome, "ExpiredToken");
    let csr = &world.bed.server.csrs()[0];
    assert_eq!(reason_of(csr, "Failed"), Some("EvidenceExpired"));
    assert_eq!(reason_of(csr, "Denied"), None);
    world.tells_no_secret(&[failed]);
    // The metadata have others, as AWS's do minutes before the end.
    let principal = Principal::instance(ACCOUNT, &world.instance.ec2.id);
    let given = world.cloud.sts().credentials(principal);
    world.instance.imds.update(|metadata| {
        metadata.identity_credentials = Some(Credentials {
            access_key_id: given.access_key_id.clone(),
            secret_access_key: given.secret_access_key.clone(),
            session_token: given.session_token.clone(),
            expiration: given.expiration,
        });
    });
    world.joins_in_the_end();
}

#[test]
fn each_way_to_fail_tells_no_credential_on_either_side() {
    // Denied.
    let mut world = World::start();
    world.node.set("AWS_NODE_NAME", "instanceID");
    world.node.set("NODE_NAME", &world.instance.ec2.id);
    let denied = world.run().failed(12).saying("NodeNameMismatch");
    world.tells_no_secret(&[denied]);

    // Refused by STS in words that repeat what was sent.
    let world = World::start();
    let mut words = String::new();
    world.instance.imds.update(|metadata| {
        let credentials = metadata.identity_credentials.as_ref().unwrap();
        words = format!(
            "{} {}",
            credentials.access_key_id, credentials.session_token
        );
    });
    let fault = Fault::error(403, "InvalidClientTokenId", &words);
    world.cloud.sts().inject(Times::always(), fault);
    let refused = world.run().failed(12).saying("CallerRefused");
    world.tells_no_secret(&[refused]);

    // Nobody decides in time.
    let mut world = World::start();
    world.node.set("TIMEOUT_SECONDS", "3");
    let fault = Fault::error(500, "InternalFailure", &words);
    world.cloud.sts().inject(Times::always(), fault);
    let pending = world.run().failed(11);
    let status = world.node.command(&["status"]).succeeded();
    for secret in world.secrets() {
        for told in [
            &pending.stderr,
            &status.stdout,
            &world.controller.process.log().text(),
        ] {
            assert!(!told.contains(&secret), "{told}");
        }
    }
}
