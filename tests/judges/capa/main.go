// Determines the AWS identity of clusters with the code of Cluster API Provider AWS.
//
// Each line of standard input is a case: an AWSCluster and its related objects, as an API server stores them. Each
// line of standard output is the answer to one case, in the same order: the credentials of the session that
// scope.NewClusterScope creates, or its error, and the conditions that it sets. The environment selects STS and the
// controller's credentials.
package main

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"runtime/debug"
	"strings"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	infrav1 "sigs.k8s.io/cluster-api-provider-aws/v2/api/v1beta2"
	"sigs.k8s.io/cluster-api-provider-aws/v2/pkg/cloud/scope"
	"sigs.k8s.io/cluster-api-provider-aws/v2/pkg/logger"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
)

// question is a case. The name of its AWSCluster must be unique, because the process caches sessions by this name.
type question struct {
	AWSCluster json.RawMessage   `json:"awsCluster"`
	Objects    []json.RawMessage `json:"objects"`
}

type condition struct {
	Type    string `json:"type"`
	Status  string `json:"status"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

type answer struct {
	AccessKeyID string `json:"accessKeyID,omitempty"`
	// Digest is the digest of the ID, the secret and the session token of the credentials.
	Digest     string      `json:"digest,omitempty"`
	Error      string      `json:"error,omitempty"`
	Conditions []condition `json:"conditions"`
}

func main() {
	ctrllog.SetLogger(logr.Discard())
	// Otherwise, a loop of sources would end the process only at 1 GB of memory.
	debug.SetMaxStack(64 << 20)
	judge, err := newJudge()
	if err != nil {
		log.Fatal(err)
	}
	lines := bufio.NewReader(os.Stdin)
	answers := json.NewEncoder(os.Stdout)
	decoder := json.NewDecoder(lines)
	for decoder.More() {
		var asked question
		if err := decoder.Decode(&asked); err != nil {
			log.Fatalf("a case cannot be read: %v", err)
		}
		found, err := judge.answer(asked)
		if err != nil {
			log.Fatalf("an object of a case cannot be read: %v", err)
		}
		if err := answers.Encode(found); err != nil {
			log.Fatal(err)
		}
	}
}

type judge struct {
	scheme  *runtime.Scheme
	decoder runtime.Decoder
	mapper  meta.RESTMapper
}

func newJudge() (*judge, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, infrav1.AddToScheme, clusterv1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	mapper := meta.NewDefaultRESTMapper(nil)
	for _, kind := range []string{"AWSClusterControllerIdentity", "AWSClusterStaticIdentity", "AWSClusterRoleIdentity"} {
		mapper.Add(infrav1.GroupVersion.WithKind(kind), meta.RESTScopeRoot)
	}
	mapper.Add(infrav1.GroupVersion.WithKind("AWSCluster"), meta.RESTScopeNamespace)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Namespace"), meta.RESTScopeRoot)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Secret"), meta.RESTScopeNamespace)
	return &judge{
		scheme:  scheme,
		decoder: serializer.NewCodecFactory(scheme).UniversalDeserializer(),
		mapper:  mapper,
	}, nil
}

func (j *judge) decode(raw json.RawMessage) (client.Object, error) {
	found, _, err := j.decoder.Decode(raw, nil, nil)
	if err != nil {
		return nil, err
	}
	object, ok := found.(client.Object)
	if !ok {
		return nil, fmt.Errorf("%T is no object", found)
	}
	return object, nil
}

// place returns the map key for an object of this type and name.
func place(object client.Object, key client.ObjectKey) string {
	return fmt.Sprintf("%T %s", object, key)
}

func (j *judge) answer(asked question) (*answer, error) {
	found, err := j.decode(asked.AWSCluster)
	if err != nil {
		return nil, err
	}
	cluster, ok := found.(*infrav1.AWSCluster)
	if !ok {
		return nil, fmt.Errorf("%T is no AWSCluster", found)
	}
	objects := []client.Object{cluster.DeepCopy()}
	sent := map[string]json.RawMessage{}
	for _, raw := range asked.Objects {
		object, err := j.decode(raw)
		if err != nil {
			return nil, err
		}
		objects = append(objects, object)
		sent[place(object, client.ObjectKeyFromObject(object))] = raw
	}
	// The fake client encodes and decodes objects, and does not distinguish an empty map from a missing map. A client of an API
	// server decodes the original data.
	get := func(
		ctx context.Context, stored client.WithWatch, key client.ObjectKey, into client.Object, options ...client.GetOption,
	) error {
		if err := stored.Get(ctx, key, into, options...); err != nil {
			return err
		}
		_, _, err := j.decoder.Decode(sent[place(into, key)], nil, into)
		return err
	}
	stored := fake.NewClientBuilder().WithScheme(j.scheme).WithRESTMapper(j.mapper).WithObjects(objects...).
		WithInterceptorFuncs(interceptor.Funcs{Get: get}).Build()
	made, err := scope.NewClusterScope(scope.ClusterScopeParams{
		Client: stored,
		Logger: logger.NewLogger(logr.Discard()),
		Cluster: &clusterv1.Cluster{
			ObjectMeta: metav1.ObjectMeta{Namespace: cluster.Namespace, Name: cluster.Name},
		},
		AWSCluster:     cluster,
		ControllerName: "awscluster",
	})
	told := &answer{Conditions: []condition{}}
	if err == nil {
		session := made.Session()
		credentials, err := session.Credentials.Retrieve(context.Background())
		if err != nil {
			return nil, fmt.Errorf("the session of a scope has no credentials: %w", err)
		}
		told.AccessKeyID = credentials.AccessKeyID
		parts := []string{credentials.AccessKeyID, credentials.SecretAccessKey, credentials.SessionToken}
		told.Digest = fmt.Sprintf("%x", sha256.Sum256([]byte(strings.Join(parts, "\x00"))))
	} else {
		told.Error = err.Error()
	}
	for _, one := range cluster.Status.Conditions {
		told.Conditions = append(told.Conditions, condition{
			Type: string(one.Type), Status: string(one.Status), Reason: one.Reason, Message: one.Message,
		})
	}
	return told, nil
}
