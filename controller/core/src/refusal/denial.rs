//! Requests that contradict themselves, the policy, or the known facts about the machine.

use std::net::IpAddr;
use std::time::Duration;

use kubelet_attestation::csr::envelope::MAX_REQUEST_LEN;
use kubelet_attestation::csr::subject::InvalidSubject;
use kubelet_attestation::names::{Audience, NodeName, Provider, ProviderId};
use x509_cert::der::asn1::ObjectIdentifier;

use super::EvidenceDenial;
use crate::identifiers::{CertificateUid, KeyDigest, NodeNames, ServingName, TokenId};

crate::reasons! {
    /// Why a request is denied: one reason a check, in the order of the checks.
    #[derive(Clone, PartialEq, Eq)]
    pub Denial {
        /// `spec.request` has more bytes than the controller reads.
        #[error("spec.request has {0} bytes, and at most {MAX_REQUEST_LEN} are read")]
        #[cure("Find the client that sent the request. The plugin never sends such a request.")]
        RequestTooLarge(usize) => "the request is too large",
        /// The requester's attributes in `spec` are larger than the API server makes them for a node or a bootstrap
        /// token.
        #[error("spec.{0} is larger than for a node or a bootstrap token")]
        #[cure("Find the client that sent the request. No node and no bootstrap token has such attributes.")]
        RequesterTooLarge(&'static str) => "the requester's attributes are too large",

        /// `spec.request` has no PEM block.
        #[error("spec.request has no PEM block")]
        #[cure("Find the client that sent the request. The plugin never sends such a request.")]
        NoPemBlock => "the request has no PEM block",
        /// `spec.request` does not begin with a `CERTIFICATE REQUEST` block.
        #[error("spec.request does not begin with a CERTIFICATE REQUEST block")]
        #[cure("Find the client that sent the request. The plugin never sends such a request.")]
        NotARequestFirst => "the request does not begin with a CERTIFICATE REQUEST block",
        /// There are two `CERTIFICATE REQUEST` blocks, so that two readers could see two different requests.
        #[error("spec.request has two CERTIFICATE REQUEST blocks")]
        #[cure("Find the client that sent the request. The plugin never sends such a request.")]
        SecondRequest => "the request has two CERTIFICATE REQUEST blocks",
        /// The provider block or the evidence block occurs twice.
        #[error("spec.request has a duplicate block")]
        #[cure("Find the client that sent the request. The plugin never sends such a request.")]
        DuplicateBlock => "the request contains a duplicate block",
        /// The request has a block of an unknown type.
        #[error("spec.request has an unknown block")]
        #[cure("Find the client that sent the request. The plugin never sends such a request.")]
        UnknownBlock => "the request has an unknown block",
        /// The request has an evidence block without a provider block before it.
        #[error("spec.request has evidence without a provider before it")]
        #[cure("Find the client that sent the request. The plugin never sends such a request.")]
        EvidenceWithoutProvider => "the request has evidence without a provider",
        /// There is text between the blocks or after them.
        #[error("spec.request has text outside its blocks")]
        #[cure("Find the client that sent the request. The plugin never sends such a request.")]
        TextOutsideBlocks => "the request has text outside its blocks",
        /// A block is not in the one accepted encoding: headers, line lengths, line ends, base64.
        #[error("spec.request is not in the required PEM encoding")]
        #[cure("Find the client that sent the request. The plugin never sends such a request.")]
        NotStrictPem => "the request is not in the required PEM encoding",
        /// The provider block does not contain the name of an attestation provider.
        #[error("the provider block does not contain a valid provider name")]
        #[cure("Find the client that sent the request. The plugin never sends such a request.")]
        ProviderMalformed => "the provider block does not contain a valid provider name",
        /// The evidence has more bytes than the controller reads.
        #[error("the evidence has too many bytes")]
        #[cure("Find the client that sent the request. The evidence of the plugin is shorter.")]
        EvidenceTooLarge => "the evidence is too large",
        /// The certification request is not DER, has another encoding, or has bytes after its end.
        #[error("the certification request is not in DER: {0}")]
        #[cure("Find the client that sent the request. The plugin never sends such a request.")]
        NotStrictDer(String) => "the certification request is not in DER",
        /// The certification request has an attribute other than the requested extensions.
        #[error("the certification request has an attribute that is not accepted")]
        #[cure("Find the client that sent the request. The plugin never sends such a request.")]
        UnknownAttribute => "the certification request has an attribute that is not accepted",
        /// The certification request lists extensions twice.
        #[error("the certification request has two lists of extensions")]
        #[cure("Find the client that sent the request. The plugin never sends such a request.")]
        DuplicateAttribute => "the certification request has two lists of extensions",
        /// The certification request has the same extension twice.
        #[error("the certification request has a duplicate extension")]
        #[cure("Find the client that sent the request. The plugin never sends such a request.")]
        DuplicateExtension => "the certification request has a duplicate extension",
        /// The key is not an ECDSA key on the named curve P-256.
        #[error("the key algorithm is {0}; only ECDSA on the named curve P-256 is accepted")]
        #[cure("Request the certificate with the plugin: it creates such a key.")]
        KeyNotAccepted(ObjectIdentifier) => "the key is not an ECDSA key on the named curve P-256",
        /// The key is not a point of its curve, or is not in uncompressed form.
        #[error("the key is not an uncompressed point on P-256")]
        #[cure("Find the client that sent the request. The plugin never sends such a request.")]
        KeyNotOnCurve => "the key is not an uncompressed point on P-256",
        /// The request is not signed with ECDSA and SHA-256.
        #[error("the certification request is not signed with ECDSA and SHA-256")]
        #[cure("Request the certificate with the plugin: it signs with ECDSA and SHA-256.")]
        SignatureAlgorithmNotAccepted => "the certification request is not signed with ECDSA and SHA-256",
        /// The request is not signed with its own key.
        #[error("the certification request's signature does not verify with its own key")]
        #[cure("Find the client that sent the request. The plugin never sends such a request.")]
        SelfSignatureInvalid => "the certification request is not signed with its own key",

        /// The organization is not exactly `system:nodes`.
        #[error("{}", InvalidSubject::Organization)]
        #[cure("Find the client that sent the request. The plugin never sends such a request.")]
        SubjectOrganization => "the subject's organization is not exactly system:nodes",
        /// The common name does not begin with `system:node:`.
        #[error("{}", InvalidSubject::CommonNamePrefix)]
        #[cure("Find the client that sent the request. The plugin never sends such a request.")]
        SubjectCommonName => "the subject's common name does not begin with system:node:",
        /// The common name does not end in a valid node name.
        #[error("{}", InvalidSubject::NodeName)]
        #[cure("Find the client that sent the request. The plugin never sends such a request.")]
        SubjectNodeName => "the subject's common name does not end in a node name",
        /// The subject has a different order, a different string type, or several values in one part.
        #[error("{}", InvalidSubject::NotCanonical)]
        #[cure("Find the client that sent the request. Neither the plugin nor a kubelet sends such a request.")]
        SubjectNotCanonical => "the subject is not in the required form (O=system:nodes, CN=system:node:<name>)",
        /// The subject has an attribute in addition to organization and common name.
        #[error("{}", InvalidSubject::ExtraAttribute)]
        #[cure("Find the client that sent the request. The plugin never sends such a request.")]
        SubjectExtraAttribute => "the subject has an attribute other than organization and common name",
        /// `spec.usages` is not exactly digital signature and client auth.
        #[error("spec.usages is not exactly digital signature and client auth")]
        #[cure("Find the client that sent the request. The plugin never sends such a request.")]
        UsagesNotExact => "the usages are not exactly digital signature and client auth",
        /// The request contains a subject alternative name. A client certificate has none.
        #[error("the request contains a subject alternative name of kind {0}")]
        #[cure("Find the client that sent the request. The plugin never sends such a request.")]
        SubjectAltNameRequested(&'static str) => "subject alternative names are not allowed",
        /// The request contains basic constraints, with or without the CA flag.
        #[error("the request contains basic constraints with CA:{}", if *ca { "TRUE" } else { "FALSE" })]
        #[cure("Find the client that sent the request. The plugin never sends such a request.")]
        BasicConstraintsRequested {
            /// Whether to be a CA.
            ca: bool,
        } => "basic constraints are not accepted",
        /// The certification request contains key usages, which could differ from `spec.usages`.
        #[error("the certification request contains key usages")]
        #[cure("Find the client that sent the request. The plugin never sends such a request.")]
        UsageExtensionRequested => "usages are accepted only in spec.usages",
        /// The request contains a critical extension.
        #[error("the request contains the critical extension {0}")]
        #[cure("Find the client that sent the request. The plugin never sends such a request.")]
        CriticalExtension(ObjectIdentifier) => "the request contains a critical extension",
        /// The request contains an extension that the controller does not know.
        #[error("the request contains the unknown extension {0}")]
        #[cure("Find the client that sent the request. The plugin never sends such a request.")]
        UnknownExtension(ObjectIdentifier) => "the request contains an unknown extension",
        /// The provider ID extension is missing.
        #[error("the provider ID extension is missing")]
        #[cure("Find the client that sent the request. The plugin never sends such a request.")]
        ProviderIdMissing => "the provider ID extension is missing",
        /// The provider ID extension is not one `UTF8String` with a provider ID.
        #[error("the provider ID extension is not one UTF8String with a provider ID")]
        #[cure("Find the client that sent the request. The plugin never sends such a request.")]
        ProviderIdMalformed => "the provider ID extension is malformed",

        /// The attestation provider of the evidence does not match the requested signer.
        #[error(
            "the signer name is for {signer}, and the provider block names {}",
            claimed.as_ref().map_or("no provider", Provider::as_str)
        )]
        #[cure("Find the client that sent the request. The plugin never sends such a request.")]
        ProviderMismatch {
            /// The signer's provider.
            signer: Provider,
            /// The provider block's.
            claimed: Option<Provider>,
        } => "the evidence provider does not match the signer name",
        /// The attestation provider requires evidence, and the request has none.
        #[error("the request has no evidence")]
        #[cure("Find the client that sent the request. The plugin always adds the evidence.")]
        EvidenceMissing => "the request has no evidence",
        /// The attestation provider has no evidence, and the request contains some.
        #[error("the request contains evidence for a provider without evidence")]
        #[cure("Find the client that sent the request. The plugin never sends such a request.")]
        EvidenceUnexpected => "this provider does not use evidence",
        /// The evidence does not have the form that its version requires.
        #[error("the evidence is malformed: {0}")]
        #[cure("Run `csr --dry-run` and `inspect evidence` on the node. Compare the versions of plugin and \
                 controller.")]
        EvidenceMalformed(String) => "the evidence is malformed",

        /// The requested signer issues a different kind of certificate.
        #[error("the requested signer issues a different kind of certificate")]
        #[cure("Find the client that sent the request. The plugin never sends such a request.")]
        SignerPurpose => "the requested signer issues a different kind of certificate",
        /// The request to the built-in client signer has no evidence. Its approval would let any holder of a bootstrap
        /// token become any node.
        #[error("the request to kubernetes.io/kube-apiserver-client-kubelet has no evidence: {0}")]
        #[cure("Set up the plugin on the node: this kubelet runs without it.")]
        UnattestedBuiltInRequest(&'static str) => "kubelet client certificates require evidence in this cluster; configure the kubelet to use kubelet-authenticator",
        /// The request has evidence and names the built-in client signer. Only this controller's signers verify
        /// evidence. The log and the Event name the right signer.
        #[error("the request names kubernetes.io/kube-apiserver-client-kubelet instead of {0}")]
        #[cure("Request the signer that the log and the Event name. The plugin does so.")]
        BuiltInSignerNotUsed(String) => "the built-in signer is not used in this cluster; request the signer of the attestation provider",
        /// A request to the serving signer of kube-controller-manager has a longer validity than the
        /// `KubeletAuthentication` permits. That signer does not shorten it.
        #[error("spec.expirationSeconds is {}, and at most {} is allowed", asked.as_secs(), granted.as_secs())]
        #[cure("Lower `spec.expirationSeconds` of the request, or raise `certificate.expirationSeconds` in the \
                 KubeletAuthentication.")]
        ExpirationTooLong {
            /// `spec.expirationSeconds`.
            asked: Duration,
            /// The most.
            granted: Duration,
        } => "expirationSeconds exceeds the limit of this cluster",

        /// `spec.usages` of a serving certificate is not exactly digital signature and server auth.
        #[error("spec.usages is not exactly digital signature and server auth")]
        #[cure("Find the client that sent the request. A kubelet with an ECDSA key never sends such a request.")]
        ServingUsagesNotExact => "the usages are not exactly digital signature and server auth",
        /// A request for a serving certificate has attestation blocks. A node with a certificate is identified by that
        /// certificate.
        #[error("the serving certificate request contains attestation blocks")]
        #[cure("Find the client that sent the request. Neither the plugin nor a kubelet sends such a request.")]
        AttestationUnexpected => "a serving certificate request must not contain attestation blocks",
        /// A request for a serving certificate has no subject alternative names.
        #[error("the serving certificate request contains no name and no address")]
        #[cure("Find the client that sent the request. A kubelet never sends such a request.")]
        ServingNamesMissing => "a serving certificate request must contain a name or an address",
        /// A subject alternative name is neither a DNS name nor an address.
        #[error("the serving certificate request contains a name of kind {0}")]
        #[cure("Find the client that sent the request. A kubelet never sends such a request.")]
        ServingNameKind(&'static str) => "a serving certificate can contain only DNS names and IP addresses",
        /// A subject alternative name is not in its one accepted form. A DNS name is in lower case, without wildcard or
        /// final dot. An address has 4 or 16 bytes and is not IPv4 in IPv6.
        #[error("the subject alternative name {0:?} is not in the required form")]
        #[cure("Correct the name or address of the Node that the log shows.")]
        ServingNameMalformed(String) => "a name or address is not in the required form",
        /// A subject alternative name occurs twice.
        #[error("the request contains {0} twice")]
        #[cure("Find the client that sent the request. A kubelet never sends such a request.")]
        ServingNameRepeated(ServingName) => "the request contains a duplicate name or address",
        /// The request has more than 1,024 names and addresses.
        #[error("the request contains {0} names and addresses")]
        #[cure("Set the kubelet's `--node-ip`, so that the Node has fewer addresses.")]
        TooManyServingNames(usize) => "the request contains too many names and addresses",
        /// The name or address never belongs to a machine: the control-plane endpoint, `kubernetes`, a Service, the
        /// local host, or no single host.
        #[error("{0} is reserved: it does not belong to one machine")]
        #[cure("Remove the name or address from the Node, for example with the kubelet's `--node-ip`.")]
        ServingNameReserved(ServingName) => "a name or address is reserved",
        /// The address is outside the ranges in `servingAddressRanges`.
        #[error("{0} is outside servingAddressRanges")]
        #[cure("Add the address that the Event names to `servingAddressRanges`, or change the kubelet's `--node-ip`.")]
        ServingAddressOutOfRange(IpAddr) => "an address is outside the allowed ranges for serving certificates",
        /// The machine obtained its certificate without evidence, so that its addresses cannot be verified.
        #[error("node {0} joined without evidence")]
        #[cure("Use an attestation provider with evidence. A node with `insecure` gets no serving certificate.")]
        UnattestedServing(NodeName) => "a node without evidence cannot get a serving certificate",
        /// The name or address belongs to another machine.
        #[error("{0} also belongs to machine {1}")]
        #[cure("Correct the addresses that the infrastructure reports for the two machines.")]
        ServingNameOfAnotherMachine(ServingName, String) => "a name or address belongs to another machine",
        /// The infrastructure does not report the name or address for the machine.
        #[error("the infrastructure does not report {0} for machine {1}")]
        #[cure("Set the kubelet's `--node-ip`, correct the infrastructure's report, or use `guestReportedAddresses: \
                 Allow` with `servingAddressRanges`.")]
        ServingNameNotReported(ServingName, String) => "the infrastructure does not report a name or address for this machine",

        /// The requester is neither a bootstrap token nor a node.
        #[error("the requester {0:?} is neither a bootstrap token nor a node")]
        #[cure("Use the bootstrap token of the Machine. The log names the requester.")]
        RequesterNotAccepted(String) => "the requester is neither a bootstrap token nor a node",
        /// The requester's groups do not match the groups of a bootstrap token or of a node.
        #[error("the requester's groups do not match a bootstrap token or a node: {0:?}")]
        #[cure("Correct `auth-extra-groups` of the bootstrap token: each begins with `system:bootstrappers:`. The \
                 log names the groups.")]
        RequesterGroups(Vec<String>) => "the requester's groups are not accepted",
        /// A node requests the certificate for a different node.
        #[error("node {requester} requests the certificate for node {asked}")]
        #[cure("Find the client that sent the request: a node can request only its own certificate.")]
        RequesterIsAnotherNode {
            /// The requester.
            requester: NodeName,
            /// The requested node.
            asked: NodeName,
        } => "a node can request only its own certificate",
        /// The requesting node's certificate does not contain the UID of a node identity. kube-apiserver forwards this
        /// UID since Kubernetes 1.33.
        #[error("the requester's certificate has no UID from this controller")]
        #[cure("Set `adoption: Allow` for a node that joined before, or use its bootstrap token. Check the \
                 Kubernetes version.")]
        RequesterUidMissing => "the requester's certificate was not issued by this controller, and the node cannot be adopted",
        /// A certificate that was obtained without evidence cannot be renewed.
        #[error("the certificate was obtained without evidence")]
        #[cure("Use the bootstrap token, which the plugin does when the certificate has expired. Use a provider with \
                 evidence.")]
        UnattestedRenewal => "a certificate that was obtained without evidence cannot be renewed",

        /// The bootstrap token belongs to a different machine than the request.
        #[error("bootstrap token {0} does not belong to machine {1}")]
        #[cure("Give the machine its own bootstrap data. Otherwise, handle it as an attack.")]
        TokenOfAnotherMachine(TokenId, String) => "the bootstrap token belongs to another machine",
        /// The provider ID does not match the machine of the bootstrap token.
        #[error("the request claims provider ID {0}, but the requester is machine {1}, which has a different provider ID")]
        #[cure("Give the machine its own bootstrap data. Otherwise, handle it as an attack.")]
        ProviderIdOfAnotherMachine(ProviderId, String) => "the provider ID does not match the machine",
        /// The machine is being deleted and has not joined. A machine that has joined can renew until it is gone.
        #[error("machine {0} is being deleted")]
        #[cure("Nothing. A new Machine gets a new bootstrap token.")]
        MachineDeleting(String) => "the machine is being deleted",

        /// The evidence was created for a different cluster.
        #[error("the evidence is for audience {0}")]
        #[cure("Put the CA certificate of this cluster into the bootstrap kubeconfig, or correct the setting \
                 `audience`.")]
        AudienceMismatch(Audience) => "the evidence was created for another cluster",
        /// The evidence identifies a different machine than the request.
        #[error("the evidence identifies {attested}, but the request claims {claimed}")]
        #[cure("Correct the setting `providerID` on the node. Otherwise, handle it as an attack.")]
        AnotherMachine {
            /// The provider ID in the evidence.
            attested: ProviderId,
            /// The provider ID in the request.
            claimed: ProviderId,
        } => "the evidence identifies another machine",
        /// Only the controller writes the annotation `cluster.x-k8s.io/tpm-endorsement-key`. The request already had
        /// it, with a different value.
        #[error("the annotation tpm-endorsement-key of the request does not match endorsement key {0}")]
        #[cure("Find the client that sent the request. The plugin never sets this annotation.")]
        EndorsementKeyAnnotation(KeyDigest) => "the annotation tpm-endorsement-key does not match the endorsement key of the machine",
        /// The node name is not a name that this machine can have.
        #[error("the request is for node {0}, but the node name of the machine is {1}")]
        #[cure("Give the kubelet the name that the Machine's objects report. The log names it.")]
        NodeNameMismatch(NodeName, NodeNames) => "the node name does not match the machine",
        /// Another machine, with a certificate that can still be valid, holds the node name.
        #[error("{1} holds node name {0}")]
        #[cure("Rename one machine. Or stop the kubelet on the other machine and run `identities reset`.")]
        NameTaken(NodeName, ProviderId) => "another machine holds the node name",
        /// The node identity of the renewing certificate is gone.
        #[error("node {0} has no node identity")]
        #[cure("Nothing, if the bootstrap token works: the plugin uses it next. Otherwise, run `tokens recreate`.")]
        RecordMissing(NodeName) => "the node identity of the certificate no longer exists",
        /// The renewing certificate belongs to a different node identity or to an earlier generation.
        #[error("certificate {1} of node {0} belongs to another node identity or to an earlier generation")]
        #[cure("Nothing, if the bootstrap token works: the plugin uses it next. After a restored backup, run \
                 `identities restored`.")]
        FormerCertificate(NodeName, CertificateUid) => "the certificate is no longer valid for the node",
        /// The machine has the provider ID of the name's holder, but is another instance or has another TPM.
        #[error("{1} holds node name {0}, but was another instance or had another TPM when it joined")]
        #[cure("Investigate immediately. If the change was intended, run `identities reset`, and put a new bootstrap \
                 credential on the node.")]
        AnotherInstance(NodeName, ProviderId) => "the instance or the TPM of the machine has changed since its join",
        /// The counters of the machine's TPM are behind their recorded values. There are two copies of the TPM, or an
        /// operator cleared it.
        #[error("the TPM counters of {1}, which holds node name {0}, are lower than recorded: the TPM was copied or cleared")]
        #[cure("Investigate immediately: run `identities revoke`, and find the copy. If the TPM was cleared on \
                 purpose, run `identities reset`.")]
        TpmRanBackwards(NodeName, ProviderId) => "the TPM counters are lower than recorded",
        /// The machine's TPM belongs to another machine, which holds another name.
        #[error("the TPM belongs to {1}, which holds node name {0}")]
        #[cure("Investigate immediately, and find the copy: boards were swapped, or a virtual machine was cloned \
                 with its TPM.")]
        TpmOfAnotherMachine(NodeName, ProviderId) => "the TPM is already registered for another machine",
        /// The key belongs to the node identity of another machine. A copied disk or image contains it.
        #[error("the key belongs to {1}, which holds node name {0}")]
        #[cure("Nothing, if the plugin creates another key by itself. Otherwise, run its `reset` on the copied \
                 machine.")]
        KeyOfAnotherMachine(NodeName, ProviderId) => "the key is already registered for another machine",
        /// An operator revoked the certificates of the machine. It gets no others until `identities reset --revoked`.
        #[error("generation {1} of node {0} is revoked")]
        #[cure("Run `identities reset --revoked`, if the machine is allowed to join again.")]
        IdentityRevoked(NodeName, u64) => "the machine's certificates were revoked",
    }
    and {
        /// A reason of the provider whose evidence it is.
        Evidence(EvidenceDenial),
    }
}
