# SGLang 0.5.23
# name the cluster's RDMA devices for the KV hand-off if the engine does not find them

# --- on node0 ---
HIP_VISIBLE_DEVICES=0,1,2,3 SGLANG_USE_AITER=1 python3 -m sglang.launch_server --model-path meta-llama/Llama-3.1-70B-Instruct --host 0.0.0.0 --port 8100 --tp-size 4 --chunked-prefill-size 16384 --enable-hierarchical-cache --hicache-size 64 --disaggregation-mode prefill --disaggregation-transfer-backend mori --disaggregation-bootstrap-port 8998 > prefill-0.log 2>&1 &
HIP_VISIBLE_DEVICES=4,5,6,7 SGLANG_USE_AITER=1 python3 -m sglang.launch_server --model-path meta-llama/Llama-3.1-70B-Instruct --host 0.0.0.0 --port 8101 --tp-size 4 --chunked-prefill-size 16384 --enable-hierarchical-cache --hicache-size 64 --disaggregation-mode prefill --disaggregation-transfer-backend mori --disaggregation-bootstrap-port 8999 > prefill-1.log 2>&1 &
python3 -m sglang_router.launch_router --host 0.0.0.0 --port 8000 --policy round_robin --pd-disaggregation --prefill http://node0:8100 8998 --prefill http://node0:8101 8999 --decode http://node1:8100 --decode http://node1:8101 > router.log 2>&1 &

# --- on node1 ---
HIP_VISIBLE_DEVICES=0,1,2,3 SGLANG_USE_AITER=1 python3 -m sglang.launch_server --model-path meta-llama/Llama-3.1-70B-Instruct --host 0.0.0.0 --port 8100 --tp-size 4 --disaggregation-mode decode --disaggregation-transfer-backend mori > decode-0.log 2>&1 &
HIP_VISIBLE_DEVICES=4,5,6,7 SGLANG_USE_AITER=1 python3 -m sglang.launch_server --model-path meta-llama/Llama-3.1-70B-Instruct --host 0.0.0.0 --port 8101 --tp-size 4 --disaggregation-mode decode --disaggregation-transfer-backend mori > decode-1.log 2>&1 &

# --- wait until it answers, then compare with the prediction ---
until curl --silent --fail --output /dev/null http://node0:8000/health; do sleep 5; done
vllm bench serve --backend openai --base-url http://node0:8000 --model meta-llama/Llama-3.1-70B-Instruct --dataset-name random --random-input-len 922 --random-output-len 922 --random-range-ratio 0.111111 --num-prompts 640 --max-concurrency 64 --ignore-eos --seed 0 --percentile-metrics ttft,tpot,itl,e2el --metric-percentiles 50,90,99 --save-result --result-filename bench.json
