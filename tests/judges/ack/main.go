// Determines the role of a resource with the runtime code of AWS Controllers for Kubernetes.
//
// Each line of standard input is a case: the Namespaces, ConfigMaps and IAMRoleSelectors, as an API server stores them, the
// feature gates, and a resource. Each line of standard output is the answer to one case, in the same order: the role and the
// account that the reconciler passes to the resource manager, or its error.
//
// The reconciler is the original code, from NewReconciler on, with the original caches.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	fakedynamic "k8s.io/client-go/dynamic/fake"
	fakekubernetes "k8s.io/client-go/kubernetes/fake"
	ctrlrt "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	ackv1alpha1 "github.com/aws-controllers-k8s/runtime/apis/core/v1alpha1"
	ackcfg "github.com/aws-controllers-k8s/runtime/pkg/config"
	"github.com/aws-controllers-k8s/runtime/pkg/featuregate"
	ackmetrics "github.com/aws-controllers-k8s/runtime/pkg/metrics"
	ackrt "github.com/aws-controllers-k8s/runtime/pkg/runtime"
	ackrtcache "github.com/aws-controllers-k8s/runtime/pkg/runtime/cache"
	"github.com/aws-controllers-k8s/runtime/pkg/runtime/iamroleselector"
	acktypes "github.com/aws-controllers-k8s/runtime/pkg/types"
)

// controllerAccount is the account that the controller's own credentials belong to.
const controllerAccount = "111122223333"

// instance is the resource of the EC2 controller that represents the instances of a cluster.
var instance = schema.GroupVersionKind{Group: "ec2.services.k8s.aws", Version: "v1alpha1", Kind: "Instance"}

var selectors = schema.GroupVersionResource{Group: "services.k8s.aws", Version: "v1alpha1", Resource: "iamroleselectors"}

type question struct {
	Namespaces []corev1.Namespace          `json:"namespaces"`
	ConfigMaps []corev1.ConfigMap          `json:"configMaps"`
	Selectors  []unstructured.Unstructured `json:"selectors"`
	Gates      map[string]bool             `json:"gates"`
	EnableCARM bool                        `json:"enableCARM"`
	Namespace  string                      `json:"namespace"`
	Labels     map[string]string           `json:"labels"`
	// OwnerAccountID is the value of status.ackResourceMetadata.ownerAccountID.
	OwnerAccountID string `json:"ownerAccountID"`
}

type answer struct {
	// Role is the role to assume. It is empty for the controller's own credentials.
	Role    string `json:"role"`
	Account string `json:"account"`
	Error   string `json:"error"`
}

// workers is the number of concurrent cases. Filling the caches takes some tenths of a second, but hardly any CPU time.
const workers = 64

func main() {
	ctrllog.SetLogger(logr.Discard())
	decoder := json.NewDecoder(bufio.NewReader(os.Stdin))
	var asked []question
	for decoder.More() {
		var one question
		if err := decoder.Decode(&one); err != nil {
			log.Fatalf("case %d cannot be read: %v", len(asked), err)
		}
		asked = append(asked, one)
	}
	answers := make([]answer, len(asked))
	var group sync.WaitGroup
	turns := make(chan struct{}, workers)
	for i := range asked {
		turns <- struct{}{}
		group.Go(func() {
			defer func() { <-turns }()
			found, err := judge(&asked[i])
			if err != nil {
				log.Fatalf("case %d: %v", i, err)
			}
			answers[i] = *found
		})
	}
	group.Wait()
	encoder := json.NewEncoder(os.Stdout)
	for _, one := range answers {
		if err := encoder.Encode(one); err != nil {
			log.Fatal(err)
		}
	}
}

func judge(asked *question) (*answer, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	gates, err := featuregate.GetFeatureGatesWithOverrides(asked.Gates)
	if err != nil {
		return nil, err
	}
	var objects []runtime.Object
	for i := range asked.Namespaces {
		objects = append(objects, &asked.Namespaces[i])
	}
	for i := range asked.ConfigMaps {
		objects = append(objects, &asked.ConfigMaps[i])
	}
	clientset := fakekubernetes.NewClientset(objects...)
	// The same configuration as in serviceController.BindControllerManager.
	carm := ackrtcache.New(logr.Discard(), ackrtcache.Config{
		Ignored: []string{ackrt.NamespaceKubeSystem, ackrt.NamespaceKubePublic, ackrt.NamespaceKubeNodeLease},
	}, gates)
	if asked.EnableCARM {
		carm.Run(clientset)
		if !carm.WaitForCachesToSync(ctx) {
			return nil, errors.New("the caches are not filled")
		}
	}
	roles := iamroleselector.NewCache(logr.Discard())
	if gates.IsEnabled(featuregate.IAMRoleSelector) {
		if err := fill(ctx, asked, roles, clientset); err != nil {
			return nil, err
		}
	}
	if err := filled(ctx, asked, gates, carm, roles); err != nil {
		return nil, err
	}
	factory := &factory{resource: newResource(asked)}
	config := ackcfg.Config{AccountID: controllerAccount, Region: "eu-west-1", EnableCARM: asked.EnableCARM, FeatureGates: gates}
	controller := acktypes.ServiceController(ackrt.NewServiceController("ec2", instance.Group, acktypes.VersionInfo{}))
	reconciler := ackrt.NewReconciler(controller, factory, logr.Discard(), config, ackmetrics.NewMetrics("ec2"), carm, roles)
	manager := &manager{reader: fake.NewClientBuilder().WithScheme(runtime.NewScheme()).WithObjects(factory.resource.object).Build()}
	bind(reconciler, manager)
	key := client.ObjectKeyFromObject(factory.resource.object)
	_, err = reconciler.Reconcile(ctx, ctrlrt.Request{NamespacedName: key})
	if factory.asked != nil {
		return factory.asked, nil
	}
	if err != nil {
		return &answer{Error: err.Error()}, nil
	}
	// The reconciler reports an error that it retries in a condition. The error is in the reason instead of the message.
	for _, condition := range *factory.resource.conditions {
		if condition.Reason != nil {
			return &answer{Error: *condition.Reason}, nil
		}
	}
	return nil, errors.New("the reconciler asked for no resource manager, and had no error")
}

// fill runs the cache of selectors until it contains all of them. The cache omits invalid selectors. Therefore, the function
// creates one more selector that does not match any namespace, and waits for this selector.
func fill(ctx context.Context, asked *question, roles *iamroleselector.Cache, namespaces *fakekubernetes.Clientset) error {
	var objects []runtime.Object
	for i := range asked.Selectors {
		objects = append(objects, &asked.Selectors[i])
	}
	kinds := map[schema.GroupVersionResource]string{selectors: "IAMRoleSelectorList"}
	dynamic := fakedynamic.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), kinds, objects...)
	roles.Run(dynamic, namespaces, ctx.Done())
	const name = "the-last"
	last := func(turn int) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "services.k8s.aws/v1alpha1", "kind": "IAMRoleSelector",
			"metadata": map[string]any{"name": name, "labels": map[string]any{"turn": fmt.Sprint(turn)}},
			"spec": map[string]any{
				"arn":               "arn:aws:iam::111122223333:role/the-last",
				"namespaceSelector": map[string]any{"names": []any{"no-namespace-has-this-name"}},
			},
		}}
	}
	if err := until(ctx, func() bool { return roles.HasSynced() }); err != nil {
		return err
	}
	resource := dynamic.Resource(selectors)
	if _, err := resource.Create(ctx, last(0), metav1.CreateOptions{}); err != nil {
		return err
	}
	// A watch that begins after a change does not report the change.
	for turn := 1; ; turn++ {
		if _, found := roles.GetSelector(name); found {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if _, err := resource.Update(ctx, last(turn), metav1.UpdateOptions{}); err != nil {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// filled waits for the handlers, which receive the objects after the informers have synced.
func filled(
	ctx context.Context, asked *question, gates featuregate.FeatureGates, carm ackrtcache.Caches, roles *iamroleselector.Cache,
) error {
	for _, namespace := range asked.Namespaces {
		isIgnored := false
		for _, ignored := range []string{ackrt.NamespaceKubeSystem, ackrt.NamespaceKubePublic, ackrt.NamespaceKubeNodeLease} {
			isIgnored = isIgnored || namespace.Name == ignored
		}
		if asked.EnableCARM && !isIgnored {
			if err := until(ctx, func() bool { return carm.Namespaces.GetLabels(namespace.Name) != nil }); err != nil {
				return err
			}
		}
		if gates.IsEnabled(featuregate.IAMRoleSelector) {
			if err := until(ctx, func() bool { return roles.Namespaces.GetLabels(namespace.Name) != nil }); err != nil {
				return err
			}
		}
	}
	for _, found := range asked.ConfigMaps {
		cache := carm.Accounts
		if found.Name == ackrtcache.ACKRoleTeamMap {
			cache = carm.Teams
		}
		if !asked.EnableCARM || cache == nil {
			continue
		}
		known := func() bool {
			_, err := cache.GetValue("")
			return !errors.Is(err, ackrtcache.ErrCARMConfigMapNotFound)
		}
		if err := until(ctx, known); err != nil {
			return err
		}
	}
	return nil
}

func until(ctx context.Context, condition func() bool) error {
	for !condition() {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		time.Sleep(5 * time.Millisecond)
	}
	return nil
}

// resource is an Instance.
type resource struct {
	acktypes.AWSResource
	object  *unstructured.Unstructured
	account *ackv1alpha1.AWSAccountID
	// All copies share these conditions.
	conditions *[]*ackv1alpha1.Condition
}

func newResource(asked *question) *resource {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(instance)
	object.SetNamespace(asked.Namespace)
	object.SetName("machine")
	object.SetLabels(asked.Labels)
	made := &resource{object: object, conditions: &[]*ackv1alpha1.Condition{}}
	if asked.OwnerAccountID != "" {
		account := ackv1alpha1.AWSAccountID(asked.OwnerAccountID)
		made.account = &account
	}
	return made
}

func (r *resource) Identifiers() acktypes.AWSResourceIdentifiers { return identifiers{r} }
func (r *resource) RuntimeObject() client.Object                 { return r.object }
func (r *resource) MetaObject() metav1.Object                    { return r.object }
func (r *resource) DeepCopy() acktypes.AWSResource               { return r }
func (r *resource) IsBeingDeleted() bool                         { return false }
func (r *resource) Conditions() []*ackv1alpha1.Condition         { return *r.conditions }

func (r *resource) ReplaceConditions(conditions []*ackv1alpha1.Condition) { *r.conditions = conditions }

type identifiers struct{ of *resource }

func (i identifiers) OwnerAccountID() *ackv1alpha1.AWSAccountID { return i.of.account }
func (i identifiers) ARN() *ackv1alpha1.AWSResourceName         { return nil }
func (i identifiers) Region() *ackv1alpha1.AWSRegion            { return nil }

// factory records the arguments of the reconciler's call, and does not create a resource manager.
type factory struct {
	resource *resource
	asked    *answer
}

func (f *factory) ResourceDescriptor() acktypes.AWSResourceDescriptor {
	return descriptor{of: f.resource}
}
func (f *factory) IsAdoptable() bool            { return false }
func (f *factory) RequeueOnSuccessSeconds() int { return 0 }

func (f *factory) ManagerFor(
	_ ackcfg.Config, _ aws.Config, _ logr.Logger, _ *ackmetrics.Metrics, _ acktypes.Reconciler,
	account ackv1alpha1.AWSAccountID, _ ackv1alpha1.AWSRegion, role ackv1alpha1.AWSResourceName,
) (acktypes.AWSResourceManager, error) {
	f.asked = &answer{Role: string(role), Account: string(account)}
	return nil, errors.New("nothing is reconciled")
}

type descriptor struct {
	acktypes.AWSResourceDescriptor
	of *resource
}

func (d descriptor) GroupVersionKind() schema.GroupVersionKind { return instance }

func (d descriptor) EmptyRuntimeObject() client.Object {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(instance)
	return object
}

func (d descriptor) ResourceFromRuntimeObject(found client.Object) acktypes.AWSResource {
	return &resource{object: found.(*unstructured.Unstructured), account: d.of.account, conditions: d.of.conditions}
}

// manager has only the clients that BindControllerManager uses first.
type manager struct {
	ctrlrt.Manager
	reader client.Client
}

func (m *manager) GetClient() client.Client    { return m.reader }
func (m *manager) GetAPIReader() client.Reader { return m.reader }

// bind gives the reconciler its clients. Then BindControllerManager would build a controller, and panics, because the manager
// has only these clients. A reconciler without clients would not give an answer.
func bind(reconciler acktypes.AWSResourceReconciler, with *manager) {
	defer func() { _ = recover() }()
	_ = reconciler.BindControllerManager(with)
}
