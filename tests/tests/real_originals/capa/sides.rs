//! The answers of both sides to a case. The project uses the real STS client, and the provider uses the Go SDK. Both
//! sides call the same STS.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use aws_config::{BehaviorVersion, SdkConfig};
use aws_credential_types::provider::SharedCredentialsProvider;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use kubelet_attestation::secret::Secret;
use kubelet_authenticator_test_support::process::Scratch;
use kubelet_authenticator_test_support::sts::{Call, Principal, Sts};
use kubelet_authenticator_tests::cloud::{ACCOUNT, CONTROLLER, REGION};
use node_attestation_aws::credentials::{
    Credentials, CredentialsKey, CredentialsSource, Lease, Tenant,
};
use node_attestation_aws::proxy::Proxy;
use node_attestation_aws::tenancy::sessions::{
    FailureKind, Keys, SdkSts, Sessions, TokenError, Tokens,
};
use node_attestation_aws::tenancy::{
    Cluster, DigestKey, Infrastructure, ObjectRef, Plan, ResolutionError, ServiceAccount,
    TenancySettings, explain,
};
use node_attestation_core::refusal::Unavailable;
use node_attestation_runtime::capi::ObjectKey;
use serde::Deserialize as _;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::runtime::Runtime;

use super::case::{Case, THEIRS};
use crate::judge::Judge;
use crate::objects::objects;

const OWN_KEY: (&str, &str) = ("AKIAOWN", "0wn");

/// A call to STS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assumed {
    /// The ARN of the role.
    pub role: String,
    /// The name of the session.
    pub session: String,
    /// The duration of the session.
    pub seconds: u32,
    /// The external ID.
    pub external_id: Option<String>,
    /// The session policy.
    pub policy: Option<String>,
    /// The managed session policies.
    pub policy_arns: BTreeSet<String>,
    /// The ARN of the caller.
    pub caller: String,
    /// The outcome: `OK`, or the error code.
    pub outcome: String,
}

/// The actions of one side: its STS calls and its result.
#[derive(Debug)]
pub struct Did<E> {
    /// The calls to STS.
    pub calls: Vec<Assumed>,
    /// The result.
    pub end: E,
}

/// Credentials.
#[derive(Debug, PartialEq, Eq)]
pub struct Obtained {
    /// The ARN of the owner of the credentials.
    pub owner: String,
    /// The digest of the key ID, the secret and the session token.
    pub digest: String,
}

/// The result on the project's side.
#[derive(Debug, PartialEq)]
pub enum Ours {
    /// Credentials.
    Keys(Obtained),
    /// The project's side cannot resolve the identity from the objects.
    Unresolved(ResolutionError),
    /// STS denied the call with this code.
    Refused(String),
}

impl fmt::Display for Ours {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Keys(_) => "keys",
            Self::Unresolved(error) => error.reason(),
            Self::Refused(code) => code,
        })
    }
}

/// The result on the provider's side.
#[derive(Debug, PartialEq)]
pub enum Theirs {
    /// Credentials.
    Keys(Obtained),
    /// The provider cannot resolve the identity from the objects.
    Unresolved(String),
    /// There are no credentials.
    NotRetrieved(String),
}

/// The results of both sides for a case.
#[derive(Debug)]
pub struct Sides {
    /// The case.
    pub case: Case,
    /// The plan, if the project's side has one.
    pub plan: Option<Plan>,
    /// The project's side.
    pub ours: Did<Ours>,
    /// The provider's side.
    pub theirs: Did<Theirs>,
    /// For each type, the reason in the provider's condition.
    pub reasons: BTreeMap<String, String>,
}

/// The judge, and STS.
#[derive(Debug)]
pub struct Bed {
    sts: Sts,
    judge: Judge,
    _authorities: Scratch,
    runtime: Runtime,
    client: Arc<SdkSts>,
}

impl Bed {
    /// Starts the judge.
    pub fn start() -> Self {
        let sts = Sts::start();
        sts.learn(Principal::user(ACCOUNT, CONTROLLER), OWN_KEY);
        let authorities = Scratch::new("authorities");
        let bundle = authorities.join("ca.pem");
        std::fs::write(&bundle, sts.ca_pem()).unwrap();
        let environment = [
            ("AWS_ACCESS_KEY_ID", OWN_KEY.0),
            ("AWS_SECRET_ACCESS_KEY", OWN_KEY.1),
            ("AWS_CA_BUNDLE", bundle.to_str().unwrap()),
            ("AWS_ENDPOINT_URL_STS", &sts.url()),
            ("AWS_MAX_ATTEMPTS", "1"),
        ];
        let trusting = Proxy::default().http_client_trusting(sts.ca_pem().as_bytes().to_vec());
        let endpoints = BTreeMap::from([(REGION.to_owned(), sts.url())]);
        Self {
            judge: Judge::start("capa", &environment),
            client: Arc::new(SdkSts::new(
                Arc::new(Own),
                endpoints,
                Some(trusting.unwrap()),
            )),
            sts,
            _authorities: authorities,
            runtime: tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap(),
        }
    }

    /// Runs a case on both sides.
    pub fn judge(&mut self, mut case: Case) -> Sides {
        self.prepare(&mut case);
        let before = self.sts.calls().len();
        let asked = json!({"awsCluster": case.cluster, "objects": case.objects});
        let Some(answer) = self.judge.ask(&asked) else {
            panic!("the judge ended: {}\n{}", self.judge.log(), case.shown());
        };
        let theirs = Did {
            calls: self.assumed(before),
            end: self.their_end(&answer),
        };
        let conditions = answer["conditions"].as_array().unwrap().iter();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let reasons = conditions
            .map(|one| (text(&one["type"]), text(&one["reason"])))
            .collect();
        let before = self.sts.calls().len();
        let (plan, end) = self.our_end(&case);
        let ours = Did {
            calls: self.assumed(before),
            end,
        };
        Sides {
            case,
            plan,
            ours,
            theirs,
            reasons,
        }
    }

    /// The reason why the project's side does not have a plan.
    pub fn resolution_of(&self, case: &Case) -> Result<(), &'static str> {
        match self.our_end(case).1 {
            Ours::Unresolved(error) => Err(error.reason()),
            Ours::Keys(_) | Ours::Refused(_) => Ok(()),
        }
    }

    /// Calls the judge with only this case, which is expected to crash the judge. Returns the judge's messages.
    pub fn kill(mut self, case: &Case) -> String {
        let asked = json!({"awsCluster": case.cluster, "objects": case.objects});
        assert_eq!(self.judge.ask(&asked), None);
        assert!(!self.judge.end().success());
        self.judge.log()
    }

    /// Adds roles and access keys to STS. Each session token is a separate key.
    fn prepare(&self, case: &mut Case) {
        for (arn, trust) in &case.trusts {
            self.sts.role(arn, trust.clone());
        }
        let secrets = case
            .objects
            .iter_mut()
            .filter(|object| object["kind"] == "Secret");
        for secret in secrets {
            let owner = Principal::user(THEIRS, secret["metadata"]["name"].as_str().unwrap());
            let data = &mut secret["data"];
            let text = |data: &Value, key: &str| {
                let value = BASE64_STANDARD.decode(data[key].as_str()?).ok()?;
                let value = String::from_utf8(value).ok()?;
                // STS does not recognize values that are empty or contain a line break.
                (!value.is_empty() && value == value.trim()).then_some(value)
            };
            if data["SessionToken"].is_string() {
                let issued = self.sts.credentials(owner);
                data["AccessKeyID"] = json!(BASE64_STANDARD.encode(issued.access_key_id));
                data["SecretAccessKey"] = json!(BASE64_STANDARD.encode(issued.secret_access_key));
                data["SessionToken"] = json!(BASE64_STANDARD.encode(issued.session_token));
            } else if let (Some(id), Some(key)) =
                (text(data, "AccessKeyID"), text(data, "SecretAccessKey"))
                && !id.starts_with("AKIAUNKNOWN")
            {
                self.sts.learn(owner, (&id, &key));
            }
        }
    }

    fn assumed(&self, before: usize) -> Vec<Assumed> {
        let calls = self.sts.calls_after(before);
        calls.iter().map(assumed).collect()
    }

    fn owner(&self, access_key_id: &str) -> String {
        let owner = self.sts.owner(access_key_id);
        owner.map_or_else(|| access_key_id.to_owned(), |owner| owner.arn)
    }

    fn our_end(&self, case: &Case) -> (Option<Plan>, Ours) {
        let decider = ObjectRef {
            kind: "AWSCluster".to_owned(),
            name: case.name().to_owned(),
        };
        let cluster = Cluster {
            namespace: case.namespace().to_owned(),
            name: case.name().to_owned(),
            infrastructure: Some(decider),
            ..Cluster::default()
        };
        let infrastructure = Infrastructure::deserialize(&case.cluster["spec"]).unwrap();
        let settings = TenancySettings::default();
        let objects = objects(&case.objects);
        let plan = match explain(&objects, &cluster, Some(&infrastructure), None, settings).plan {
            Ok(plan) => plan,
            Err(error) => return (None, Ours::Unresolved(error)),
        };
        let own =
            SharedCredentialsProvider::new(Keys::new(OWN_KEY.0, OWN_KEY.1, None, None, "own"));
        let key = DigestKey::random().unwrap();
        let key_of_case = ObjectKey::new(case.namespace(), case.name());
        // A new instance is used, so that the cache does not contain data from a different case.
        let sessions = Sessions::new(own, self.client.clone(), Arc::new(NoTokens), key);
        let keys = self.runtime.block_on(async {
            let of_plan = sessions.of_plan(&plan, REGION, &key_of_case);
            of_plan.keys().await
        });
        let end = match keys {
            Ok(keys) => Ours::Keys(Obtained {
                owner: self.owner(keys.access_key_id()),
                digest: digest([
                    keys.access_key_id(),
                    keys.secret_access_key(),
                    keys.session_token().unwrap_or_default(),
                ]),
            }),
            Err(error) => match error.kind {
                FailureKind::Refused { code, .. } => Ours::Refused(code),
                _ => panic!("{error}: {}", case.shown()),
            },
        };
        (Some(plan), end)
    }

    fn their_end(&self, answer: &Value) -> Theirs {
        let Some(error) = answer["error"].as_str() else {
            return Theirs::Keys(Obtained {
                owner: self.owner(answer["accessKeyID"].as_str().unwrap()),
                digest: answer["digest"].as_str().unwrap().to_owned(),
            });
        };
        let session = "failed to create aws V2 session: ";
        let text = error
            .strip_prefix(session)
            .unwrap_or_else(|| panic!("{error}"));
        if let Some(text) = text.strip_prefix("Failed to get providers for cluster: ") {
            return Theirs::Unresolved(text.to_owned());
        }
        let text = text.strip_prefix("Failed to retrieve identity credentials: ");
        Theirs::NotRetrieved(text.unwrap_or_else(|| panic!("{error}")).to_owned())
    }
}

/// The controller's own credentials.
pub fn own() -> Obtained {
    Obtained {
        owner: format!("arn:aws:iam::{ACCOUNT}:user/{CONTROLLER}"),
        digest: digest([OWN_KEY.0, OWN_KEY.1, ""]),
    }
}

/// The SHA-256 digest of the ID, the secret and the session token, with zeros between them.
fn digest(parts: [&str; 3]) -> String {
    let digest = Sha256::digest(parts.join("\0"));
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn assumed(call: &Call) -> Assumed {
    let text = |name: &str| call.parameter(name).unwrap_or_default();
    assert_eq!(text("Action"), "AssumeRole");
    let arns = 1..=20;
    Assumed {
        role: text("RoleArn"),
        session: text("RoleSessionName"),
        seconds: text("DurationSeconds").parse().unwrap(),
        external_id: call.parameter("ExternalId"),
        policy: call.parameter("Policy"),
        policy_arns: arns
            .filter_map(|n| call.parameter(&format!("PolicyArns.member.{n}.arn")))
            .collect(),
        caller: call.caller.clone().unwrap_or_default(),
        outcome: call.outcome.clone(),
    }
}

/// Credentials for which only the SDK's settings are used.
#[derive(Debug)]
struct Own;

#[async_trait::async_trait]
impl CredentialsSource for Own {
    async fn credentials(&self, _: &Tenant, _: &str) -> Result<Credentials, Unavailable> {
        Ok(Credentials {
            key: CredentialsKey::new([0; 32]),
            config: SdkConfig::builder()
                .behavior_version(BehaviorVersion::latest())
                .build(),
            account: None,
            lease: Lease::Endless,
        })
    }
}

#[derive(Debug)]
struct NoTokens;

#[async_trait::async_trait]
impl Tokens for NoTokens {
    async fn token(&self, _: &ServiceAccount) -> Result<Secret<String>, TokenError> {
        Err(TokenError::Missing)
    }
}
