# gnuplot -e "data='OUT.dat'; image='OUT.png'" attention.gnuplot
set terminal pngcairo size 1500,1350 font "DejaVu Sans,11"
set output image
set multiplot layout 3,1
set style data histograms
set style histogram clustered gap 1
set style fill solid 0.8 border -1
set xtics rotate by -20 scale 0
set grid ytics
set key top left horizontal
set rmargin 18
set yrange [0:2.9]
set ylabel "times FlashAttention-2"
set title "Attention forward, bf16: speed over FlashAttention-2 (1.0)"
plot data index 0 using 2:xtic(1) title "sm120 profile" lc rgb "#3b6fb6", '' index 0 using 3 title "native" lc rgb "#7fb3e6", \
     '' index 0 using 4 title "cuDNN" lc rgb "#bbbbbb", 1 with lines lc rgb "black" notitle
set title "The same at Qwen3.5's heads, causal"
plot data index 1 using 2:xtic(1) title "sm120 profile" lc rgb "#3b6fb6", '' index 1 using 3 title "native" lc rgb "#7fb3e6", \
     '' index 1 using 4 title "cuDNN" lc rgb "#bbbbbb", 1 with lines lc rgb "black" notitle
set ylabel "of a copy's bandwidth"
set yrange [0:1.4]
set title "Decode, 32 sequences: keys and values read a second over what a copy moves (1.0); the bar is 0.8"
plot data index 2 using 2:xtic(1) title "sm120 profile" lc rgb "#3b6fb6", '' index 2 using 3 title "native" lc rgb "#7fb3e6", \
     0.8 with lines lc rgb "black" notitle
unset multiplot
