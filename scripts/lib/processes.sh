# shellcheck shell=sh disable=SC2154 # rc: set by the script that reads this one
# Task 2: every compute process on a GPU, as nvidia-smi tells it, in processes.csv; the free text last, for it is never quoted.

take_processes() {
    begin_snapshot processes
    ask_nvidia_smi --query-compute-apps=gpu_uuid,pid,used_gpu_memory,process_name --format=csv,nounits
    end_snapshot processes processes.csv "$rc" -f "$LIB/snapshot.awk" -f "$LIB/names.awk" -f "$LIB/csv.awk" "$out"
}
