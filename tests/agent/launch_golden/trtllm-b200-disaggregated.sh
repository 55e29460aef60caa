# TensorRT-LLM main-002f3cc3
# put the path or id of a fp4 checkpoint of DeepSeek-R1 in place of CHECKPOINT, or give --checkpoint
# servers take requests of up to 2112 tokens, as this workload sends; raise it for longer
# name the cluster's RDMA devices for the KV hand-off if the engine does not find them

# --- on node0 ---
cat > prefill.yaml <<'END'
tensor_parallel_size: 4
moe_expert_parallel_size: 4
max_seq_len: 2112
kv_cache_config:
  dtype: fp8
moe_config:
  load_balancer:
    num_slots: 288
speculative_config:
  decoding_type: MTP
  max_draft_len: 1
disable_overlap_scheduler: true
cache_transceiver_config:
  backend: NIXL
END
cat > router.yaml <<'END'
hostname: 0.0.0.0
port: 8000
backend: pytorch
context_servers:
  num_instances: 2
  urls:
  - 'node0:8100'
  - 'node0:8101'
generation_servers:
  num_instances: 1
  urls:
  - 'node1:8100'
END
CUDA_VISIBLE_DEVICES=0,1,2,3 trtllm-serve CHECKPOINT --host 0.0.0.0 --port 8100 --config prefill.yaml > prefill-0.log 2>&1 &
CUDA_VISIBLE_DEVICES=4,5,6,7 trtllm-serve CHECKPOINT --host 0.0.0.0 --port 8101 --config prefill.yaml > prefill-1.log 2>&1 &
trtllm-serve disaggregated -c router.yaml > router.log 2>&1 &

# --- on node1 ---
cat > decode.yaml <<'END'
tensor_parallel_size: 8
moe_expert_parallel_size: 8
enable_attention_dp: true
max_seq_len: 2112
kv_cache_config:
  dtype: fp8
moe_config:
  load_balancer:
    num_slots: 288
cuda_graph_config:
  max_batch_size: 128
  enable_padding: true
speculative_config:
  decoding_type: MTP
  max_draft_len: 1
cache_transceiver_config:
  backend: NIXL
END
trtllm-serve CHECKPOINT --host 0.0.0.0 --port 8100 --config decode.yaml > decode-0.log 2>&1 &

# --- wait until it answers, then compare with the prediction ---
until curl --silent --fail --output /dev/null http://node0:8000/health; do sleep 5; done
vllm bench serve --backend openai --base-url http://node0:8000 --model CHECKPOINT --dataset-name random --random-input-len 922 --random-output-len 922 --random-range-ratio 0.111111 --num-prompts 640 --max-concurrency 64 --ignore-eos --seed 0 --percentile-metrics ttft,tpot,itl,e2el --metric-percentiles 50,90,99 --save-result --result-filename bench.json
